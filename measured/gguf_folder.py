#!/usr/bin/env python3
"""A GGUF file as a Hugging Face folder in FP16, read by Transformers alone, so that tests/gpu_parity.py can take it.

    python3 measured/gguf_folder.py FILE.gguf FOLDER

Needs torch, transformers, accelerate and gguf. Tiles widens a quantized matrix to FP16 by itself: `tiles logits` of the file and of the
folder give the same bits, which is another check of both.
"""
import json, os, sys
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

path, folder = sys.argv[1], sys.argv[2]
model = AutoModelForCausalLM.from_pretrained(os.path.dirname(path) or ".", gguf_file=os.path.basename(path), dtype=torch.float16)
config = model.config.to_dict()
config.pop("quantization_config", None)
tied = ("lm_head.weight",) if config["tie_word_embeddings"] else ()
os.makedirs(folder, exist_ok=True)
save_file({k: v.contiguous() for k, v in model.state_dict().items() if k not in tied},
          os.path.join(folder, "model.safetensors"), {"format": "pt"})
with open(os.path.join(folder, "config.json"), "w") as f:
    json.dump(config, f)
