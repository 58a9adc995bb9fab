"""One evaluation of a PINNsformer's loss and gradient, as its line search asks for it, against PyTorch's eager mode: ours and the
peer's take turns on one GPU.

    python3 tests/bench/gpu/pinn.py [--out FILE] [--seconds N] [--dry]

453,561 parameters, 51 x 51 points in sequences of 5, convection, fp32 without TF32 on both sides, softmax and x^3 with a fixed scale.
torch.compile is no peer: it has no second derivatives. An evaluation of ours that does not run as a recording is a failure.
"""
import argparse
import os
import sys
import time

import torch

import common
from common import Results, Turns, arguments, reason, spread, sync

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "peers"))
import torch_pinn  # noqa: E402


class Peer:
    def __init__(self, model, phi):
        began = time.perf_counter()
        if not common.dry:
            torch.cuda.reset_peak_memory_stats()
        before = 0 if common.dry else torch.cuda.memory_allocated()
        self.one = torch_pinn.build(model, phi, common.device)
        self.one()
        sync()
        self.first_s = time.perf_counter() - began
        for _ in range(1 if common.dry else 3):
            self.one()
        sync()
        self.memory_mb = 0 if common.dry else (torch.cuda.max_memory_allocated() - before) / 1048576
        self.times = []

    def run(self, count):
        for _ in range(count):
            sync()
            t = time.perf_counter()
            self.one()
            sync()
            self.times.append(time.perf_counter() - t)


def measure(results, until):
    model, edge = ("pinn_tiny", 5) if common.dry else ("pinn", 51)
    polyd = lambda phi: Turns("step_bench", "--device", "cuda", "--model", model, "--phi", phi, "--turns")
    kinds = {"polyd softmax": lambda: polyd("softmax"), "polyd x3": lambda: polyd("poly"),
             "torch eager": lambda: Peer(model, "softmax"), "torch eager-x3": lambda: Peer(model, "poly")}
    runners = {}

    def failed(name, why):
        results.failed(f"step pinn {name}", why, ours=name.startswith("polyd"))
        runners.pop(name, None)

    for name, begin in kinds.items():
        try:
            runners[name] = begin()
        except Exception as e:
            failed(name, reason(e))
    for done in range(2 if common.dry else 50):
        if done >= 10 and time.monotonic() > until:
            break
        for name in list(runners):
            try:
                runners[name].run(1 if common.dry else 10)
            except Exception as e:
                failed(name, reason(e))
    rows = {}
    for name, r in runners.items():
        s, p10, p90, rounds = spread(r.times)
        rows[name] = dict(ms=1e3 * s, p10=1e3 * p10, p90=1e3 * p90, rounds=rounds, rate=edge * edge / s, unit="points/s")
        if isinstance(r, Turns):
            end = r.finish()
            rows[name].update(memory_mb=end["device_mb"], first_s=end["first_s"], nodes=end["nodes"], eager=end["eager"])
        else:
            rows[name].update(memory_mb=r.memory_mb, first_s=r.first_s)
    for name, row in rows.items():
        peer = rows.get("torch eager" if name.endswith("softmax") else "torch eager-x3" if name.endswith("x3") else name)
        results.add(kind="step", model="pinn", name=name, **row, vs_torch=peer["ms"] / row["ms"] if peer else float("nan"))
    outside = {name: int(row["eager"]) for name, row in rows.items() if row.get("eager")}
    if outside:
        failed(" and ".join(outside), f"evaluations outside the recording: {outside}")
    results.add(kind="clocks", model="pinn", clocks=common.clocks())


def main():
    o = arguments(argparse.ArgumentParser(description=__doc__))
    results = Results(o.out)
    torch.set_float32_matmul_precision("highest")
    results.device()
    measure(results, o.until)
    results.end()


if __name__ == "__main__":
    main()
