#!/usr/bin/env python3
"""What the gguf package says, for tests/test_gguf.c: sizes of every type, blocks and their values, a file.

    python tests/golden_gguf.py > tests/golden/gguf.h
    python tests/golden_gguf.py --corpus tests/corpus/gguf    # seeds for tests/fuzz_gguf.c

Needs gguf and numpy. The blocks are random bytes, but their scales are chosen: ordinary ones, negative
ones, subnormal ones, zero, and one as large as FP16 can still hold the result of.
"""

import importlib.metadata
import pathlib
import sys
import tempfile

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize

rng = np.random.default_rng(20240611)


def array(kind, name, values, form):
    print(f"static const {kind} {name}[] = {{")
    text = [form % v for v in values]
    per_line = 96 // (len(text[0]) + 2)
    for i in range(0, len(text), per_line):
        print("    " + ", ".join(text[i : i + per_line]) + ",")
    print("};")


def half(values):
    return np.array(values, np.float16).view(np.uint8).reshape(-1, 2)


SCALES = [0.0123, -0.7, 6e-6, 0.0, -0.0, 400.0, 1.0, -3e-5]
MINIMA = [-0.09, 3.3, -6e-6, 0.0, 0.5, 50000.0, 1e-3, -7.0]


def blocks(kind):
    n = len(SCALES)
    parts = [half(SCALES)]
    if kind == T.Q4_1:
        parts.append(half(MINIMA))
    parts.append(rng.integers(0, 256, (n, 32 if kind == T.Q8_0 else 16), np.uint8))
    return np.concatenate(parts, axis=1)


def file():
    with tempfile.NamedTemporaryFile(suffix=".gguf") as f:
        w = gguf.GGUFWriter(f.name, "llama")
        w.add_name("From the package")
        w.add_uint8("a.u8", 200)
        w.add_int8("a.i8", -100)
        w.add_uint16("a.u16", 60000)
        w.add_int16("a.i16", -30000)
        w.add_uint32("a.u32", 4000000000)
        w.add_int32("a.i32", -2000000000)
        w.add_uint64("a.u64", 2**64 - 1)
        w.add_int64("a.i64", -(2**63))
        w.add_float32("a.f32", 0.1)
        w.add_float64("a.f64", 0.1)
        w.add_bool("a.yes", True)
        w.add_bool("a.no", False)
        w.add_array("a.words", ["", "one", "zwölf"])
        w.add_array("a.numbers", [3, -1, 4])
        w.add_tensor("x", np.arange(6, dtype=np.float32).reshape(2, 3))
        w.add_tensor("y", np.array([1, 2, 3, 4, 5], np.float16))
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()
        return open(f.name, "rb").read()


def seed(path, arch, kind, keys):
    """A model of one layer and no use: all that the shape asks for, and one block of `kind`."""
    w = gguf.GGUFWriter(path, arch)
    w.add_block_count(1)
    w.add_context_length(64)
    w.add_embedding_length(32)
    w.add_feed_forward_length(32)
    w.add_head_count(4)
    w.add_head_count_kv(2)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_token_list(["a", "b", "ab"])
    w.add_token_merges(["a b"])
    keys(w)
    w.add_tensor("token_embd.weight", np.zeros((3, 32), np.float16))
    w.add_tensor("blk.0.attn_norm.weight", np.ones(32, np.float32))
    size = GGML_QUANT_SIZES[kind][1]
    w.add_tensor("blk.0.attn_q.weight", np.zeros((2, size), np.uint8), raw_dtype=kind)
    w.add_tensor("rope_freqs.weight", np.ones(4, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if sys.argv[1:2] == ["--corpus"]:
    folder = pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package.gguf").write_bytes(file())
    seed(folder / "q8_0.gguf", "llama", T.Q8_0, lambda w: w.add_name("Seed"))
    seed(folder / "q4_0.gguf", "qwen2", T.Q4_0, lambda w: w.add_custom_alignment(64))
    seed(folder / "q4_1.gguf", "qwen3", T.Q4_1, lambda w: w.add_rope_scaling_factor(1.0))
    sys.exit()

print("// Written by tests/golden_gguf.py, Python %s, gguf %s, numpy %s. Do not edit." % (
    sys.version.split()[0], importlib.metadata.version("gguf"), np.__version__))
print("// clang-format off")
print("static const struct { uint32_t id; const char *name; uint32_t elements, bytes; } "
      "golden_types[] = {")
for t in T:
    n, b = GGML_QUANT_SIZES[t]
    print(f'    {{{t.value}, "{t.name}", {n}, {b}}},')
print("};")
for kind in (T.Q8_0, T.Q4_0, T.Q4_1):
    raw = blocks(kind)
    values = dequantize(raw, kind).astype(np.float32)
    narrow = values.astype(np.float16)
    assert np.isfinite(narrow).all()
    name = kind.name.lower()
    array("uint8_t", f"golden_{name}", raw.reshape(-1), "0x%02x")
    array("uint16_t", f"golden_{name}_f16", narrow.reshape(-1).view(np.uint16), "0x%04x")
array("uint8_t", "golden_file", file(), "0x%02x")
