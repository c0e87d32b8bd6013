#!/usr/bin/env python3
"""Golden logits from an independent implementation: Transformers, in FP32, over the same weights.

    python tests/reference.py tiny --tiles ./tiles        # every tiny family in F32, BF16 and F16
    python tests/reference.py smollm2 models/SmolLM2-135M-Instruct.Q4_1.gguf
    python tests/reference.py show FOLDER --ids 1,2,3     # any checkpoint, to look at by hand

Needs torch, transformers, gguf, safetensors and numpy; running and testing Tiles needs none of them,
because what this writes is committed. Each golden is two files in tests/golden: logits-NAME.json says
what was run and with which versions, and holds the ids; logits-NAME.f32 holds the logits of the chosen
positions and columns, float32, [positions][columns].

What a golden claims:
  greedy     the ids that follow the prompt, each the largest FP32 logit, no penalties, no stops
  gap        at each of them, the largest logit less the second largest
  own_error  at each chosen position, ||x - fp32|| / ||fp32|| of Transformers' own run in the dtype that
             the weights are stored in: the error that is usual with these weights
"""

import argparse
import hashlib
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers

GOLDEN = pathlib.Path(__file__).resolve().parent / "golden"
STEPS = 64


def hash64(data, seed=0):
    """hash64 of base.c, so that a test can tell whether it has the weights that were used here."""
    mask = (1 << 64) - 1
    h = ((seed ^ 0xCBF29CE484222325) + len(data)) & mask
    whole = len(data) // 8 * 8
    for (w,) in struct.iter_unpack("<Q", data[:whole]):
        h = ((h ^ w) * 0x100000001B3) & mask
        h ^= h >> 29
    for b in data[whole:]:
        h = ((h ^ b) * 0x100000001B3) & mask
    h ^= h >> 32
    h = (h * 0xD6E8FEB86659FD93) & mask
    return h ^ h >> 32


def versions():
    import gguf  # noqa: F401  its version is part of the record
    from importlib.metadata import version

    names = ("torch", "transformers", "numpy", "safetensors", "gguf")
    return {"python": sys.version.split()[0], **{n: version(n) for n in names}}


def logits(model, ids):
    """[len(ids), vocab] in FP32. The whole sequence at once and no cache: nothing is carried over."""
    with torch.no_grad():
        out = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    return out.float().numpy()


def decode(model, prompt):
    """STEPS greedy ids, and at each the largest logit less the second largest."""
    ids, gap = list(prompt), []
    for _ in range(STEPS):
        last = logits(model, ids)[-1]
        order = np.argsort(-last, kind="stable")
        gap.append(float(last[order[0]] - last[order[1]]))
        ids.append(int(order[0]))
    return ids[len(prompt) :], gap


def clearest(model, prompts):
    """The prompt that stays farthest from a near-tie. With random weights every other text has one
    somewhere, and only where there is none does a difference mean something."""
    ids = torch.tensor(prompts)
    least = torch.full((len(prompts),), torch.inf)
    with torch.no_grad():
        for _ in range(STEPS):
            top = model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[:, -1].topk(2)
            least = torch.minimum(least, top.values[:, 0] - top.values[:, 1])
            ids = torch.cat([ids, top.indices[:, :1]], 1)
    return [int(i) for i in prompts[int(least.argmax())]]


def measure(name, fp32, own, prompt, positions, columns, note):
    greedy, gap = decode(fp32, prompt)
    ids = list(prompt) + greedy
    reference = logits(fp32, ids)
    mine = logits(own, ids)
    own_error = [
        float(np.linalg.norm(mine[p] - reference[p]) / np.linalg.norm(reference[p])) for p in positions
    ]
    if columns:  # the largest 256 of every chosen position, and every 64th
        keep = set(range(0, reference.shape[1], 64))
        for p in positions:
            keep.update(int(i) for i in np.argsort(-reference[p], kind="stable")[:256])
        columns = sorted(keep)
        chosen = reference[np.ix_(positions, columns)]
    else:
        chosen = reference[positions]
    GOLDEN.mkdir(exist_ok=True)
    chosen.astype("<f4").tofile(GOLDEN / f"logits-{name}.f32")
    record = {
        "made_by": "tests/reference.py " + " ".join(sys.argv[1:]),
        "versions": versions(),
        **note,
        "vocab": int(reference.shape[1]),
        "prompt": list(prompt),
        "greedy": greedy,
        "gap": [round(g, 7) for g in gap],
        "positions": positions,
        "own_error": [float(f"{e:.4g}") for e in own_error],
        "columns": columns or None,
    }
    with open(GOLDEN / f"logits-{name}.json", "w") as f:
        lines = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in record.items()]
        f.write("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{name}: smallest gap {min(gap):.4g}, own error up to {max(own_error):.3g}")


def load(folder, dtype):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager"
    )
    return model.eval()


def tiny(arguments):
    dtypes = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
    rng = np.random.default_rng(20)
    for shape in ("tiny-llama", "tiny-qwen2", "tiny-qwen3"):
        for suffix, dtype in dtypes.items():
            work = pathlib.Path(tempfile.mkdtemp())
            try:
                folder = work / "model"
                subprocess.run(
                    [arguments.tiles, "synth", f"{shape}:{suffix}", str(folder), "--seed", str(arguments.seed)],
                    check=True,
                )
                weights = (folder / "model.safetensors").read_bytes()
                config = json.loads((folder / "config.json").read_text())
                fp32 = load(folder, torch.float32)
                prompt = clearest(fp32, rng.integers(0, config["vocab_size"], (400, 40)))
                # Where attention changes: the first positions, around powers of two, the last.
                positions = [0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 31, 32, 39, 63, 103]
                note = {"shape": f"{shape}:{suffix}", "seed": arguments.seed}
                note["weights_hash"] = f"{hash64(weights):016x}"
                measure(
                    f"{shape}-{suffix}",
                    fp32,
                    load(folder, dtype),
                    prompt,
                    positions,
                    False,
                    note,
                )
            finally:
                shutil.rmtree(work)


def from_gguf(path, dtype):
    """A LlamaForCausalLM with the tensors of a GGUF file, widened to FP16 as Tiles does."""
    from gguf import GGUFReader
    from gguf.quants import dequantize

    reader = GGUFReader(path)
    field = {k: f.contents() for k, f in reader.fields.items() if k.startswith("llama.")}
    heads, kv_heads = field["llama.attention.head_count"], field["llama.attention.head_count_kv"]
    config = transformers.LlamaConfig(
        vocab_size=field["llama.vocab_size"],
        hidden_size=field["llama.embedding_length"],
        intermediate_size=field["llama.feed_forward_length"],
        num_hidden_layers=field["llama.block_count"],
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        rms_norm_eps=field["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": field["llama.rope.freq_base"]},
        max_position_embeddings=field["llama.context_length"],
        tie_word_embeddings=True,
        attn_implementation="eager",
    )

    def straight(w, n):  # llama.cpp stores the rows of Q and K so that RoPE's pairs are neighbours
        return w.reshape(n, w.shape[0] // n // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)

    part = {
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    state = {}
    for t in reader.tensors:
        w = dequantize(t.data, t.tensor_type).astype(np.float32)
        if t.tensor_type.name != "F32":
            w = w.astype(np.float16).astype(np.float32)  # round to nearest, ties to even
        if t.name == "token_embd.weight":
            name = "model.embed_tokens.weight"
        elif t.name == "output_norm.weight":
            name = "model.norm.weight"
        else:
            _, layer, what, _ = t.name.split(".")
            name = f"model.layers.{layer}.{part[what]}.weight"
            if what == "attn_q":
                w = straight(w, heads)
            if what == "attn_k":
                w = straight(w, kv_heads)
        state[name] = torch.from_numpy(w.copy())
    model = transformers.LlamaForCausalLM(config)
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    return model.to(dtype).eval()


def smollm2(arguments):
    path = pathlib.Path(arguments.file)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is gravity?"}], add_generation_prompt=True, tokenize=False
    )
    note = {
        "file": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "weights": "widened to FP16, round to nearest even",
    }
    fp32, own = from_gguf(path, torch.float32), from_gguf(path, torch.float16)
    for name, text in (("text", "The three laws of thermodynamics say that"), ("chat", chat)):
        prompt = tokenizer(text)["input_ids"]
        positions = [0, 1, len(prompt) - 1, len(prompt) + STEPS - 1]
        measure(
            f"smollm2-{name}", fp32, own, prompt, positions, True, {**note, "text": text},
        )
        record = json.loads((GOLDEN / f"logits-smollm2-{name}.json").read_text())
        print(repr(tokenizer.decode(record["greedy"])))


def show(arguments):
    ids = [int(i) for i in arguments.ids.split(",")]
    path = pathlib.Path(arguments.model)
    model = load(path, torch.float32) if path.is_dir() else from_gguf(path, torch.float32)
    for position, row in enumerate(logits(model, ids)):
        best = np.argsort(-row, kind="stable")[:5]
        print(position, " ".join(f"{i}:{row[i]:.5f}" for i in best))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    p = commands.add_parser("tiny")
    p.add_argument("--tiles", default="./tiles")
    p.add_argument("--seed", type=int, default=1)
    p.set_defaults(run=tiny)
    p = commands.add_parser("smollm2")
    p.add_argument("file")
    p.set_defaults(run=smollm2)
    p = commands.add_parser("show")
    p.add_argument("model")
    p.add_argument("--ids", required=True)
    p.set_defaults(run=show)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    arguments.run(arguments)


if __name__ == "__main__":
    main()
