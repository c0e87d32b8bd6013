#!/usr/bin/env python3
"""Golden frequencies of RoPE: Transformers' own functions over configs of every kind that Tiles knows.

    python tests/golden_rope.py > tests/golden/rope.h

Needs torch and transformers; testing needs neither, because what this writes is committed. Transformers
computes in FP32, so its last bit is not ours.
"""

import sys

import torch
import transformers
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

CASES = {
    "llama_3_2_1b": (64, {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0,
                          "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
    "llama_3_1": (128, {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
                        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
    "tiny_llama": (16, {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
                        "high_freq_factor": 4.0, "original_max_position_embeddings": 64}),
    "linear": (32, {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}),
    "plain": (128, {"rope_type": "default", "rope_theta": 1000000.0}),
}


def frequencies(head_dim, parameters):
    config = LlamaConfig(hidden_size=4 * head_dim, num_attention_heads=4, head_dim=head_dim,
                         max_position_embeddings=131072, rope_parameters=parameters)
    return LlamaRotaryEmbedding(config).inv_freq.tolist()


assert "llama3" in ROPE_INIT_FUNCTIONS
print("// Written by tests/golden_rope.py; do not edit.")
print(f"// python {sys.version.split()[0]}, torch {torch.__version__}, transformers {transformers.__version__}")
print("// clang-format off")
for name, (head_dim, parameters) in CASES.items():
    values = frequencies(head_dim, parameters)
    assert len(values) == head_dim // 2
    print(f"static const float ROPE_{name}[{len(values)}] = {{")
    for i in range(0, len(values), 4):
        print("    " + ", ".join(f"{v:.9g}f" if "." in f"{v:.9g}" or "e" in f"{v:.9g}" else f"{v:.9g}.0f"
                                 for v in values[i:i + 4]) + ",")
    print("};")
print("// clang-format on")
