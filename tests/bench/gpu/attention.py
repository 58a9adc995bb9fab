"""Attention on a GPU against its peers (performance.md 3): every shape and direction, taking turns in one process.

    python3 tests/bench/gpu/attention.py [--out FILE] [--shapes all|short|long] [--seconds PER_ROW]

Ours: x^1..x^5, sigmoid, softmax, the linear forms of x and x^2. Peers: scaled_dot_product_attention with each back end
forced (the fastest is "best SDPA"), the materialised phi(q k') v under torch.compile, FlexAttention's logarithm trick
for even powers and sigmoid. bf16, N(0,1) inputs, each peer in the layout that it likes, conversions not counted.
Before anything is timed, ours is compared with the materialised form in f64 on a part of the batch.
"""
import argparse
import math

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from common import Polyd, Results, device_facts, interleave, peaks

SDPA = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "math": SDPBackend.MATH}
# B, N, H, d, causal
SHORT = [(1024, 197, 12, 64, False), (1024, 256, 12, 64, False), (512, 197, 6, 128, False)]
LONG = [(128, 1024, 12, 64, False), (128, 1024, 12, 64, True), (16, 8192, 12, 64, False), (16, 8192, 12, 64, True),
        (64, 1024, 12, 128, False), (8, 8192, 12, 128, False)]


def phi_of(name, x, p, c, bias):
    return c * {"poly": lambda: x ** p, "sigmoid": lambda: torch.sigmoid(x + bias), "relu": lambda: torch.relu(x)}[name]()


def exact(q, k, v, phi, p, c, bias, causal):
    q, k, v = (t.double() for t in (q, k, v))
    s = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if phi == "softmax":
        if causal:
            s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).tril(), float("-inf"))
        return s.softmax(-1) @ v
    a = phi_of(phi, s, p, c, bias)
    return (a.tril() if causal else a) @ v


def plain(phi, p, c, causal, n):
    tau_mask = torch.ones(n, n, dtype=torch.bool, device="cuda").tril() if causal else None

    def f(q, k, v):
        s = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        a = phi_of(phi, s, p, c, -math.log(n))
        if causal:
            a = a * tau_mask
        return a @ v

    return torch.compile(f)


def flex(phi, p, n):
    """phi(q k') v = exp(lse) softmax(log(phi + eps)) v: what FlexAttention can express of an unnormalised phi."""
    from torch.nn.attention.flex_attention import flex_attention
    compiled = torch.compile(flex_attention)

    def score(s, b, h, i, j):
        f = s ** p if phi == "poly" else torch.sigmoid(s - math.log(n))
        return torch.log(f + 1e-6)

    def f(q, k, v):
        y, lse = compiled(q, k, v, score_mod=score, return_lse=True)
        return y * lse.exp().unsqueeze(-1).to(y.dtype) - 1e-6 * v.sum(-2, keepdim=True)

    return f


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    parser.add_argument("--shapes", default="all", choices=["all", "short", "long"])
    parser.add_argument("--seconds", type=float, default=4.0)
    o = parser.parse_args()
    results, polyd = Results(o.out), Polyd()
    flops, copy = peaks()
    results.add(kind="device", **device_facts(), matmul_tflops=flops, copy_tbs=copy)
    here = torch.cuda.current_stream()
    for b, n, h, d, causal in (SHORT if o.shapes != "long" else []) + (LONG if o.shapes != "short" else []):
        qkv = torch.randn(b, n, 3, h, d, device="cuda", dtype=torch.bfloat16)
        q, k, v = (t.transpose(1, 2).contiguous().requires_grad_() for t in qkv.unbind(2))
        dy = torch.randn(b, n, h, d, device="cuda", dtype=torch.bfloat16)
        dyt = dy.transpose(1, 2).contiguous()
        y, dqkv = torch.empty_like(dy), torch.empty_like(qkv)
        sums = torch.empty(b, h, n, device="cuda")
        work = 4.0 * b * h * n * n * d * (0.5 if causal else 1)
        for backward in (False, True):
            floor = max(work * (2.5 if backward else 1) / flops / 1e9, (14 if backward else 8) * b * h * n * d / copy / 1e9)
            ours, runners, plans = [("x%d" % p, "poly", p, "quadratic") for p in range(1, 6)], {}, []
            ours += [("sigmoid", "sigmoid", 0, "quadratic"), ("softmax", "softmax", 0, "auto")]
            if n >= 1024:
                ours += [("x1-linear", "poly", 1, "linear"), ("x2-linear", "poly", 2, "linear")]
            for name, phi, p, form in ours:
                c, bias = (1.0 if phi != "poly" else n ** -0.5), (-math.log(n) if phi == "sigmoid" else 0.0)
                how = dict(phi=phi, degree=p, scale=c, bias=bias, causal=causal, form=form)
                stat = sums if phi == "softmax" else None
                try:
                    fwd = polyd.attention(qkv, y, stat, **how)
                    y.fill_(float("nan"))
                    torch.cuda.synchronize()
                    polyd.run(fwd)
                    polyd.sync()
                    want = exact(q[:1, :2], k[:1, :2], v[:1, :2], phi, p, c, bias, causal)
                    got = y[:1].transpose(1, 2)[:, :2].double()
                    error = ((got - want).norm() / want.norm()).item()
                    if not error < 2e-2:
                        print(f"# WRONG: {name} N={n} causal={causal}: relative error {error:.3g}; not timed")
                        results.add(kind="wrong", name=name, n=n, d=d, causal=causal, error=error)
                        continue
                    plan = polyd.attention(qkv, y, stat, dy, dqkv, **how) if backward else fwd
                    plans.append(plan)
                    runners["polyd " + name] = (polyd.stream, lambda plan=plan: polyd.run(plan))
                except RuntimeError as e:
                    print(f"# polyd {name}: {e}")
            peers = {"sdpa " + s: (lambda s=s: lambda: sdpa(s, q, k, v, causal))() for s in SDPA if not (s == "math" and n > 4096)}
            if n <= 1024:
                peers["compiled x3"] = (lambda f=plain("poly", 3, n ** -0.5, causal, n): f(q, k, v))
            if not causal:
                peers["flex x2"] = (lambda f=flex("poly", 2, n): f(q, k, v))
                peers["flex sigmoid"] = (lambda f=flex("sigmoid", 0, n): f(q, k, v))
            for name, f in peers.items():
                try:
                    if backward:
                        out = f()
                        runners[name] = (here, lambda out=out: torch.autograd.grad(out, (q, k, v), dyt, retain_graph=True))
                    else:
                        runners[name] = (here, lambda f=f: no_grad(f))
                except Exception as e:
                    print(f"# {name}: {type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}")
            times = interleave(runners, budget_s=o.seconds)
            best = min((t[0] for name, t in times.items() if name.startswith("sdpa")), default=float("nan"))
            for name, (ms, p10, p90) in times.items():
                tflops = work * (2.5 if backward else 1) / ms / 1e9
                results.add(kind="attention", pass_="bwd" if backward else "fwd", n=n, b=b, h=h, d=d, causal=causal, name=name, ms=ms,
                            p10=p10, p90=p90, tflops=tflops, of_peak=tflops / flops, of_floor=ms / floor, vs_best_sdpa=best / ms)
            del runners, peers
            for plan in plans:
                polyd.free(plan)
            torch.cuda.empty_cache()


def sdpa(name, q, k, v, causal):
    with sdpa_kernel(SDPA[name]):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def no_grad(f):
    with torch.no_grad():
        return f()


main()
