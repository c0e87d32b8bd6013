#!/usr/bin/env python3
"""Tiles beside llama.cpp on this machine's CPU: the same tensors, the same threads, one run.

    python3 measured/cpu_llama.py SHAPE FOLDER [ROUNDS]  > measured/cpu-SHAPE.tsv

SHAPE is a shape of `tiles synth`; its checkpoint is written to FOLDER and exported to a BF16 GGUF there.
Needs llama-cpp-python, gguf, numpy. Slices of about 0.35 s alternate between the two programs, each between
two measurements of the read rate over the model's own size by the same two threads (Tiles' read_rate); a
slice whose two rates disagree by more than 8% is dropped, and the slices are sorted into the memory's two
states where the widest step between neighbouring rates is more than 1.25. K/V bytes (a few positions) are in
Tiles' floor and left out of llama.cpp's. llama.cpp copies its logits to the host buffer, as does Tiles.
"""
import ctypes, datetime, json, os, platform, statistics, struct, subprocess, sys, time
import numpy as np

shape, folder = sys.argv[1], sys.argv[2]
rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 12
top = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
tiles = os.path.join(top, "build", "tiles")
if not os.path.exists(os.path.join(folder, "model.safetensors")):
    subprocess.check_call([tiles, "synth", shape, folder, "--seed", "7"])

# --- The same tensors as GGUF: Q and K permuted as llama.cpp wants them for llama.
path = os.path.join(folder, "model.safetensors")
config = json.load(open(os.path.join(folder, "config.json")))
gguf_path = os.path.join(folder, "model.bf16.gguf")
if not os.path.exists(gguf_path):
    import gguf
    with open(path, "rb") as f:
        n, = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(n))
    raw = np.memmap(path, dtype=np.uint8, mode="r", offset=8 + n)
    w = gguf.GGUFWriter(gguf_path, "llama")
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    hidden = config["hidden_size"]
    head_dim = config.get("head_dim") or hidden // heads
    w.add_block_count(config["num_hidden_layers"]); w.add_context_length(8192)
    w.add_embedding_length(hidden); w.add_feed_forward_length(config["intermediate_size"])
    w.add_head_count(heads); w.add_head_count_kv(kv); w.add_vocab_size(config["vocab_size"])
    w.add_layer_norm_rms_eps(config["rms_norm_eps"]); w.add_rope_freq_base(config["rope_theta"])
    w.add_rope_dimension_count(head_dim); w.add_tokenizer_model("no_vocab")
    names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
             "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
             "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    for name, t in header.items():
        if name == "__metadata__":
            continue
        a, b = t["data_offsets"]
        data = raw[a:b].view(np.uint16).reshape(t["shape"])
        if name == "model.embed_tokens.weight": to = "token_embd.weight"
        elif name == "model.norm.weight": to = "output_norm.weight"
        elif name == "lm_head.weight": to = "output.weight"
        else:
            layer, rest = name[len("model.layers."):].split(".", 1)
            to = "blk.%s.%s.weight" % (layer, names[rest[:-len(".weight")]])
        if ".attn_q." in to or ".attn_k." in to:
            h = heads if ".attn_q." in to else kv
            data = data.reshape(h, 2, head_dim // 2, hidden).swapaxes(1, 2).reshape(h * head_dim, hidden)
        if data.ndim == 1:
            w.add_tensor(to, (data.astype(np.uint32) << 16).view(np.float32))
        else:
            w.add_tensor(to, np.ascontiguousarray(data), raw_dtype=gguf.GGMLQuantizationType.BF16)
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()

# --- Tiles' own read rate, over the file's pages.
lib = os.path.join(top, "build", "libtiles-bench.so")
sources = [os.path.join(top, f) for f in os.listdir(top) if f.endswith(".c") and f != "tiles.c"]
subprocess.check_call(["gcc", "-O2", "-std=c11", "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", lib, *sources,
                       "-lcjson", "-lpcre2-8", "-lutf8proc", "-lpthread", "-lm"])
so = ctypes.CDLL(lib)
class Region(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]
so.read_rate.restype = ctypes.c_double
so.read_rate.argtypes = [ctypes.POINTER(Region), ctypes.c_size_t, ctypes.c_uint32, ctypes.c_double]
mapped = np.memmap(gguf_path, dtype=np.uint8, mode="r")
region = Region(mapped.ctypes.data, mapped.size)
threads = 2
rate = lambda: so.read_rate(ctypes.byref(region), 1, threads, 0.06)

import llama_cpp
llama_cpp.llama_backend_init()
quiet = llama_cpp.llama_log_callback(lambda *a: None)
llama_cpp.llama_log_set(quiet, None)
mp = llama_cpp.llama_model_default_params()
model = llama_cpp.llama_model_load_from_file(gguf_path.encode(), mp)
cp = llama_cpp.llama_context_default_params()
cp.n_ctx, cp.n_threads, cp.n_threads_batch = 512, threads, threads
ctx = llama_cpp.llama_init_from_model(model, cp)
token = (llama_cpp.llama_token * 1)(11)
position = 0
def llama_step():
    global position
    if position >= 64:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(ctx), True)
        position = 0
    assert llama_cpp.llama_decode(ctx, llama_cpp.llama_batch_get_one(token, 1)) == 0
    position += 1
for _ in range(4):
    llama_step()

weight_bytes = int([l.split("\t")[1] for l in subprocess.check_output(
    [tiles, "plan", shape, "--tsv"], text=True).splitlines() if l.startswith("weight_bytes")][0])
samples = {"tiles": [], "llama.cpp": []}
dropped = {"tiles": 0, "llama.cpp": 0}
for _ in range(rounds):
    time.sleep(0.05)
    before, times, begin = rate(), [], time.perf_counter()
    while time.perf_counter() - begin < 0.35:
        t = time.perf_counter(); llama_step(); times.append(1e3 * (time.perf_counter() - t))
    after = rate()
    if max(before, after) / min(before, after) - 1 <= 0.08:
        samples["llama.cpp"].append(((before + after) / 2, statistics.median(times)))
    else: dropped["llama.cpp"] += 1
    time.sleep(0.05)
    out = subprocess.run([tiles, "bench", folder, "--device", "cpu", "--workers", str(threads), "--runs", "1",
                          "-n", "8" if weight_bytes > 1e9 else "64", "--tsv"], text=True, capture_output=True)
    for line in out.stdout.splitlines()[1:]:
        f = line.split("\t")
        samples["tiles"].append((float(f[5]), float(f[7])))
        dropped["tiles"] += int(f[4])
    if out.returncode: dropped["tiles"] += 1

rates = sorted(r for v in samples.values() for r, _ in v)
cut, widest = None, 1.25
for a, b in zip(rates, rates[1:]):
    if b / a > widest: cut, widest = (a + b) / 2, b / a
digest = subprocess.check_output(["sh", os.path.join(top, "chapters", "source.sh"), "cpu"], text=True).strip()
cpu = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), platform.machine())
print("# device\t%s, %d threads" % (cpu, threads))
print("# date\t%s" % datetime.date.today())
print("# command\tpython3 measured/cpu_llama.py %s FOLDER %d" % (shape, rounds))
print("# source\t%s" % digest)
print("# versions\tllama-cpp-python %s" % llama_cpp.__version__)
print("# weights\t%s BF16, seed 7, %d bytes a token" % (shape, weight_bytes))
print("state\tprogram\tslices\tdropped\tread_gbs\tms_token\tleast_ms\tmost_ms\tshare_percent")
medians = {}
for state in (("slow", "fast") if cut else ("only",)):
    for program, v in samples.items():
        s = [(r, m) for r, m in v if cut is None or (r > cut) == (state == "fast")]
        if not s: continue
        ms = [m for _, m in s]
        share = statistics.median(100 * weight_bytes / r / 1e6 / m for r, m in s)
        medians[state, program] = statistics.median(ms)
        print("%s\t%s\t%d\t%d\t%.2f\t%.3f\t%.3f\t%.3f\t%.1f" % (state, program, len(s), dropped[program],
              statistics.median(r for r, _ in s), statistics.median(ms), min(ms), max(ms), share))
    if (state, "tiles") in medians and (state, "llama.cpp") in medians:
        print("%s\tllama.cpp / tiles\t\t\t\t%.3f" % (state, medians[state, "llama.cpp"] / medians[state, "tiles"]))
