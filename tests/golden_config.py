#!/usr/bin/env python3
"""Configs as Transformers writes them, and seeded checkpoints as Transformers reads them.

    python tests/golden_config.py ./tiles

For every tiny family: `tiles synth` writes a checkpoint, Transformers must load it with no key missing
and none left over, and what Transformers then saves (its config has `dtype` and `rope_parameters`, since
version 5) goes to tests/golden/config-NAME.json, where tests/test_model.c reads it. Needs torch and
transformers; testing does not.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch
import transformers
from transformers import AutoModelForCausalLM

GOLDEN = pathlib.Path(__file__).resolve().parent / "golden"

for name in ("tiny-llama", "tiny-qwen2", "tiny-qwen3"):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.argv[1], "synth", name, folder + "/a", "--seed", "1"], check=True)
        model, info = AutoModelForCausalLM.from_pretrained(folder + "/a", dtype=torch.bfloat16, output_loading_info=True)
        bad = {k: v for k, v in info.items() if v}
        assert not bad, bad
        model.save_pretrained(folder + "/b")
        shutil.copy(folder + "/b/config.json", GOLDEN / f"config-{name}.json")
        print(name, "transformers", transformers.__version__, "torch", torch.__version__)
