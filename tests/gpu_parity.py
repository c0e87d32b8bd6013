#!/usr/bin/env python3
"""A GPU's logits beside Transformers' on the same checkpoints.

    python3 tests/gpu_parity.py TILES FOLDER [CONTEXT ...]  > measured/parity.tsv

For each context, seeded ids of that length: Tiles' logits at the last position, Transformers' in FP32 (TF32 off), and Transformers' in the
checkpoint's own two-byte type. The error is ||x - ref|| / ||ref||, against the FP32 run. Then 64 greedy tokens after 8 ids, with the
FP32 run's two best logits at the first step that differs. Needs torch and transformers and a CUDA card.
"""
import os, subprocess, sys, tempfile
import numpy as np
import torch
from transformers import AutoModelForCausalLM

tiles, folder = sys.argv[1], sys.argv[2]
contexts = [int(c) for c in sys.argv[3:]] or [1, 384, 385, 4096]
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False

def load(dtype):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").cuda().eval()

def ours(ids):
    with tempfile.NamedTemporaryFile() as f:
        subprocess.run([tiles, "logits", folder, "--device", "cuda:0", "--ids", ",".join(map(str, ids)), "-o", f.name],
                       check=True, stderr=subprocess.DEVNULL)
        return np.fromfile(f.name, "<f4").astype(np.float64)

with torch.no_grad():
    ref_model = load(torch.float32)
    own = ref_model.config.dtype if getattr(ref_model.config, "dtype", None) not in (None, torch.float32) else torch.bfloat16
    from transformers import AutoConfig
    own = AutoConfig.from_pretrained(folder).dtype or torch.bfloat16
    rng = np.random.default_rng(1)
    ids = {c: rng.integers(0, ref_model.config.vocab_size, c).tolist() for c in contexts}
    ref = {c: ref_model(torch.tensor([v]).cuda(), logits_to_keep=1).logits[0, -1].double().cpu().numpy() for c, v in ids.items()}
    prompt = rng.integers(0, ref_model.config.vocab_size, 8).tolist()
    x, past, greedy, gaps = torch.tensor([prompt]).cuda(), None, [], []
    for _ in range(64):
        o = ref_model(x, past_key_values=past, use_cache=True)
        past = o.past_key_values
        best = o.logits[0, -1].topk(2)
        greedy.append(int(best.indices[0])); gaps.append(float(best.values[0] - best.values[1]))
        x = best.indices[:1].view(1, 1)
    del ref_model, past
    torch.cuda.empty_cache()
    two_model = load(own)
    two = {c: two_model(torch.tensor([v]).cuda(), logits_to_keep=1).logits[0, -1].double().cpu().numpy() for c, v in ids.items()}
    del two_model
    torch.cuda.empty_cache()

error = lambda x, r: float(np.linalg.norm(x - r) / np.linalg.norm(r))
print("# dtype\t%s" % own)
print("context\ttiles_error\ttransformers_error\ttiles_no_larger")
bad = 0
for c in contexts:
    a, b = error(ours(ids[c]), ref[c]), error(two[c], ref[c])
    ok = a <= b
    bad += not ok
    print("%d\t%.3e\t%.3e\t%s" % (c, a, b, "yes" if ok else "NO"), flush=True)
out = subprocess.run([tiles, "run", folder, "--device", "cuda:0", "--ids", ",".join(map(str, prompt)), "-n", "64"],
                     check=True, capture_output=True, text=True).stdout
mine = [int(t) for t in out.split()]
same = next((i for i, (a, b) in enumerate(zip(mine, greedy)) if a != b), min(len(mine), 64))
print("# greedy\t%d of 64 equal%s" % (same, "" if same == 64 else "; there the FP32 run's best two are %.2e apart" % gaps[same]))
sys.exit(bad > 0)
