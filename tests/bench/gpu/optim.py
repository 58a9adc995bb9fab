"""The fused optimisers on a GPU against PyTorch's, over the tensors of GPT-2 124M and of ViT-B/16 (kernels/PERFORMANCE.md 4).

    python3 tests/bench/gpu/optim.py [--out FILE] [--seconds N] [--dry]

AdamW with a global clip, and momentum SGD with decoupled decay (torch's fused SGD, whose decay is in the gradient).
Floors: 28 and 20 bytes a parameter (read g, m, v, w of 4 bytes; write m, v, w), 4 more for the norm of the gradient.
"""
import argparse

import torch

import common
from common import Polyd, Results, arguments, here, interleave, reason, sync


def block(d):
    return [d, d, d * 3 * d, 3 * d, d * d, d, d, d, d * 4 * d, 4 * d, 4 * d * d, d]


def sizes_of(model):
    d, layers = (16, 2) if common.dry else (768, 12)
    front = [50304 * 768, 1024 * 768, 768, 768] if model == "gpt2" else [3 * 256 * 768, 768, 768, 197 * 768, 768, 768, 768000, 1000]
    return ([64, 16] if common.dry else front) + block(d) * layers


def measure(polyd, results, model, copy):
    sizes = sizes_of(model)
    make = lambda scale: [polyd.randn((n,), torch.float32, scale) for n in sizes]
    p, g, m, v = make(0.02), make(1e-3), make(0.0), [polyd.zeros((n,)) for n in sizes]
    hyper, gate, total = polyd.zeros((4,)), polyd.zeros((2,)), polyd.zeros((1,))
    hyper.copy_(torch.tensor([1e-4, 0.1, 0.05, 0.0]))
    gate.fill_(1.0)
    before = [t.clone() for t in (p[0], g[0])]
    adamw = polyd.tensors("shim_adamw", sizes, p, g, m, v, hyper, gate)
    msgdw = polyd.tensors("shim_adamw", sizes, p, g, m, None, hyper, gate)
    norm = polyd.tensors("shim_sumsq", sizes, g, total)
    sync()
    polyd.run(adamw)
    polyd.run(norm)
    polyd.sync()
    # One step of AdamW by hand on the first tensor, and the norm in f64.
    w, x = before
    want = w * (1 - 1e-4 * 0.1) - 1e-4 * (0.1 * x / 0.1) / ((0.05 * x * x / 0.05).sqrt() + 1e-8)
    error = ((p[0] - want).norm() / (want - w).norm()).item()
    squares = sum((t.double() ** 2).sum() for t in g).item()
    if not (error < 1e-3 and abs(total.item() - squares) < 1e-4 * squares):
        results.wrong(name=f"adamw {model}", error=error, norm=total.item(), norm_want=squares)
        return
    theirs = [torch.nn.Parameter(t.clone()) for t in p]
    for t, x in zip(theirs, g):
        t.grad = x.clone()
    fused = {} if common.dry else {"fused": True}
    opt = torch.optim.AdamW(theirs, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, **fused)
    sgd = torch.optim.SGD(theirs, lr=1e-4, momentum=0.9, weight_decay=0.1, **fused)

    def torch_clip(step):
        torch.nn.utils.clip_grad_norm_(theirs, 1.0, **({} if common.dry else {"foreach": True}))
        step()

    def ours(step):
        polyd.run(norm)
        polyd.run(step)

    failed = {}
    times = interleave({"polyd adamw+clip": (polyd.stream, lambda: ours(adamw)), "polyd adamw": (polyd.stream, lambda: polyd.run(adamw)),
                        "polyd msgdw": (polyd.stream, lambda: polyd.run(msgdw)),
                        "torch adamw+clip": (here(), lambda: torch_clip(opt.step)), "torch adamw": (here(), lambda: opt.step()),
                        "torch msgdw": (here(), lambda: sgd.step())}, budget_s=12, failed=failed)
    for name, why in failed.items():
        results.failed(f"optim {model} {name}", why, ours=name.startswith("polyd"))
    n = sum(sizes)
    for name, (ms, p10, p90, rounds) in times.items():
        what = name.split(" ", 1)[1]
        floor = {"adamw+clip": 32, "adamw": 28, "msgdw": 20}[what] * n / copy / 1e9
        peer = times.get("torch " + what, (float("nan"),))[0]
        results.add(kind="optim", model=model, name=name, parameters=n, ms=ms, p10=p10, p90=p90, rounds=rounds, of_floor=ms / floor,
                    vs_torch=peer / ms)
    for plan in (adamw, msgdw, norm):
        polyd.free(plan)


def main():
    o = arguments(argparse.ArgumentParser())
    results, polyd = Results(o.out), Polyd()
    _, copy = results.device()
    for model in ("gpt2", "vit_b16"):
        try:
            measure(polyd, results, model, copy)
        except Exception as e:
            results.failed(f"optim {model}", reason(e))
    results.end()


main()
