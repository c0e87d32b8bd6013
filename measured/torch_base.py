#!/usr/bin/env python3
"""PyTorch decoding at batch one, on random weights of the real shapes: plain, as a CUDA graph, compiled by inductor as a CUDA graph, and
Transformers' own loop.

    python3 measured/torch_base.py [llama-3.2-1b] [qwen2.5-1.5b]

One token's argmax included. Graphs are timed with CUDA events, 30 times, the median; Transformers with the wall clock. The cache has S
positions and every token attends to all S under a mask. What is left out: reading the id back, and a host that feeds it to the next step.
"""
import sys, time, torch, traceback
import torch.nn.functional as F
torch.manual_seed(0)
dev = 'cuda'
def med(f, n=30, warm=5):
    for _ in range(warm): f()
    torch.cuda.synchronize(); v = []
    for _ in range(n):
        a = torch.cuda.Event(enable_timing=True); b = torch.cuda.Event(enable_timing=True)
        a.record(); f(); b.record(); torch.cuda.synchronize(); v.append(a.elapsed_time(b))
    v.sort(); return v[len(v)//2]
def graph(f):
    s = torch.cuda.Stream(); s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):
        for _ in range(3): f()
    torch.cuda.current_stream().wait_stream(s)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g): f()
    return g.replay
M = {'llama-3.2-1b': dict(V=128256, D=2048, I=8192, L=16, H=32, K=8, hd=64, dt=torch.bfloat16, bias=False, eps=1e-5, theta=5e5),
     'qwen2.5-1.5b': dict(V=151936, D=1536, I=8960, L=28, H=12, K=2, hd=128, dt=torch.float16, bias=True, eps=1e-6, theta=1e6)}
class Dec(torch.nn.Module):   # minimal fused-QKV decoder in the gpt-fast manner
    def __init__(s, c, S):
        super().__init__(); s.c = c; r = lambda *z: torch.nn.Parameter(torch.randn(*z, device=dev, dtype=c['dt']) * 0.02, requires_grad=False)
        s.emb = r(c['V'], c['D']); s.n = torch.nn.Parameter(torch.ones(c['D'], device=dev, dtype=c['dt']), requires_grad=False)
        s.lay = torch.nn.ModuleList()
        for _ in range(c['L']):
            m = torch.nn.Module(); m.qkv = r((c['H']+2*c['K'])*c['hd'], c['D']); m.o = r(c['D'], c['H']*c['hd']); m.gu = r(2*c['I'], c['D']); m.d = r(c['D'], c['I'])
            m.n1 = torch.nn.Parameter(torch.ones(c['D'], device=dev, dtype=c['dt']), requires_grad=False); m.n2 = torch.nn.Parameter(torch.ones(c['D'], device=dev, dtype=c['dt']), requires_grad=False)
            m.b = r((c['H']+2*c['K'])*c['hd']) if c['bias'] else None
            m.register_buffer('k', torch.zeros(1, c['K'], S, c['hd'], device=dev, dtype=c['dt'])); m.register_buffer('v', torch.zeros(1, c['K'], S, c['hd'], device=dev, dtype=c['dt']))
            s.lay.append(m)
        f = 1.0 / (c['theta'] ** (torch.arange(0, c['hd'], 2, device=dev).float() / c['hd'])); t = torch.outer(torch.arange(S, device=dev).float(), f)
        s.register_buffer('cos', torch.cat([t.cos(), t.cos()], -1).to(c['dt'])); s.register_buffer('sin', torch.cat([t.sin(), t.sin()], -1).to(c['dt'])); s.S = S
    def norm(s, x, w): return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + s.c['eps'])).to(x.dtype) * w
    def forward(s, tok, pos):
        c = s.c; x = s.emb[tok]; cos = s.cos[pos]; sin = s.sin[pos]; H, K, hd = c['H'], c['K'], c['hd']
        rot = lambda q: q * cos + torch.cat([-q[..., hd//2:], q[..., :hd//2]], -1) * sin
        mask = (torch.arange(s.S, device=dev) <= pos).view(1, 1, 1, -1)
        for m in s.lay:
            q, k, v = F.linear(s.norm(x, m.n1), m.qkv, m.b).split([H*hd, K*hd, K*hd], -1)
            q = rot(q.view(1, 1, H, hd)).transpose(1, 2); k = rot(k.view(1, 1, K, hd)).transpose(1, 2); v = v.view(1, 1, K, hd).transpose(1, 2)
            m.k.index_copy_(2, pos, k); m.v.index_copy_(2, pos, v)
            a = F.scaled_dot_product_attention(q, m.k, m.v, attn_mask=mask, enable_gqa=True)
            x = x + F.linear(a.transpose(1, 2).reshape(1, 1, -1).view(1, -1), m.o)
            g, u = F.linear(s.norm(x, m.n2), m.gu).chunk(2, -1)
            x = x + F.linear(F.silu(g) * u, m.d)
        return F.linear(s.norm(x, s.n), s.emb).argmax(-1)
which = sys.argv[1:] or ['llama-3.2-1b', 'qwen2.5-1.5b']
with torch.no_grad():
    for name in which:
        c = M[name]; wb = None
        for S in ((128, 4096) if name[0] == 'l' else (768,)):
            try:
                m = Dec(c, S); wb = sum(p.numel()*p.element_size() for p in m.parameters())
                tok = torch.zeros(1, dtype=torch.long, device=dev); pos = torch.tensor([S-1], device=dev)
                f = lambda: m(tok, pos)
                print(f'{name} S={S} weights {wb/1e9:.4f} GB plain-torch eager {med(f):.4f} ms', flush=True)
                print(f'{name} S={S} plain-torch graph {med(graph(f)):.4f} ms', flush=True)
                t0 = time.time(); cf = torch.compile(m, fullgraph=True, mode='default'); g = lambda: cf(tok, pos); g(); torch.cuda.synchronize(); t1 = time.time()
                print(f'{name} S={S} compiled+graph {med(graph(g)):.4f} ms (compile {t1-t0:.0f} s)', flush=True)
                del m, cf; torch._dynamo.reset(); torch.cuda.empty_cache()
            except Exception: traceback.print_exc()
        try:
            import transformers
            if name[0] == 'l':
                from transformers import LlamaConfig as C, LlamaForCausalLM as X
                cfg = C(vocab_size=c['V'], hidden_size=c['D'], intermediate_size=c['I'], num_hidden_layers=c['L'], num_attention_heads=c['H'], num_key_value_heads=c['K'], head_dim=c['hd'], tie_word_embeddings=True, rms_norm_eps=1e-5, max_position_embeddings=131072, rope_theta=5e5)
            else:
                from transformers import Qwen2Config as C, Qwen2ForCausalLM as X
                cfg = C(vocab_size=c['V'], hidden_size=c['D'], intermediate_size=c['I'], num_hidden_layers=c['L'], num_attention_heads=c['H'], num_key_value_heads=c['K'], tie_word_embeddings=True, rms_norm_eps=1e-6, max_position_embeddings=32768, rope_theta=1e6)
            torch.set_default_dtype(c['dt'])
            with torch.device(dev): hf = X(cfg).eval()
            torch.set_default_dtype(torch.float32)
            plen = 32 if name[0] == 'l' else 512; n = 64 if name[0] == 'l' else 255
            ids = torch.randint(5, 1000, (1, plen), device=dev)
            for r in range(3):
                torch.cuda.synchronize(); t0 = time.time()
                o = hf(ids, use_cache=True); past = o.past_key_values; nt = o.logits[:, -1:].argmax(-1); torch.cuda.synchronize(); t1 = time.time()
                for _ in range(n): o = hf(nt, past_key_values=past, use_cache=True); nt = o.logits[:, -1:].argmax(-1)
                torch.cuda.synchronize(); t2 = time.time()
                print(f'{name} HF {transformers.__version__} eager: prefill {plen} tok {1e3*(t1-t0):.2f} ms, decode {1e3*(t2-t1)/n:.4f} ms/token', flush=True)
            from torch.profiler import profile, ProfilerActivity
            with profile(activities=[ProfilerActivity.CUDA]) as pr:
                for _ in range(4): o = hf(nt, past_key_values=past, use_cache=True); nt = o.logits[:, -1:].argmax(-1)
                torch.cuda.synchronize()
            ev = [e for e in pr.events() if e.device_type == torch.autograd.DeviceType.CUDA]
            print(f'{name} HF eager: {len(ev)/4:.0f} device events/token, {sum(e.device_time for e in ev)/4e3:.4f} ms device time/token', flush=True)
            del hf; torch.cuda.empty_cache()
        except Exception: traceback.print_exc()
