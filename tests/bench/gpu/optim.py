"""The fused optimiser on a GPU against PyTorch's: AdamW with a global clip over the tensors of GPT-2 124M.

    python3 tests/bench/gpu/optim.py [--out FILE]

Floor: 28 bytes a parameter (read g, m, v, w of 4 bytes, write m, v, w), 4 more for the norm of the gradient.
"""
import argparse

import torch

from common import Polyd, Results, device_facts, interleave, peaks


def sizes_of_gpt2():
    sizes = [50304 * 768, 1024 * 768, 768, 768]
    for _ in range(12):
        sizes += [768, 768, 768 * 2304, 2304, 768 * 768, 768, 768, 768, 768 * 3072, 3072, 3072 * 768, 768]
    return sizes


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    o = parser.parse_args()
    results, polyd = Results(o.out), Polyd()
    _, copy = peaks()
    sizes = sizes_of_gpt2()
    make = lambda scale: [torch.randn(n, device="cuda") * scale for n in sizes]
    p, g, m, v = make(0.02), make(1e-3), make(0), make(0)
    hyper = torch.tensor([1e-4, 0.1, 0.05, 0.0], device="cuda")
    gate = torch.tensor([1.0, 1.0], device="cuda")
    total = torch.zeros(1, device="cuda")
    step = polyd.tensors("shim_adamw", sizes, p, g, m, v, hyper, gate)
    norm = polyd.tensors("shim_sumsq", sizes, g, total)
    theirs = [torch.nn.Parameter(t.clone()) for t in p]
    for t, x in zip(theirs, g):
        t.grad = x.clone()
    opt = torch.optim.AdamW(theirs, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def torch_step():
        torch.nn.utils.clip_grad_norm_(theirs, 1.0, foreach=True)
        opt.step()

    def our_step():
        polyd.run(norm)
        polyd.run(step)

    here = torch.cuda.current_stream()
    times = interleave({"polyd adamw+norm": (polyd.stream, our_step), "torch adamw fused+clip": (here, torch_step)})
    floor = 32.0 * sum(sizes) / copy / 1e9
    results.add(kind="device", **device_facts(), copy_tbs=copy)
    for name, (ms, p10, p90) in times.items():
        results.add(kind="optim", name=name, parameters=sum(sizes), ms=ms, p10=p10, p90=p90, of_floor=ms / floor,
                    vs_torch=times["torch adamw fused+clip"][0] / ms if "torch adamw fused+clip" in times else 0.0)


main()
