"""Decoding GPT-2 124M on a GPU: a cache of keys and values, and the states of constant size of x and x^2
(kernels/PERFORMANCE.md 2.3 and 4).

    python3 tests/bench/gpu/decode.py [--out FILE] [--seconds N] [--dry]

Batch 256 at context 1024 and 8192, batch 1 at 1024; the peer (at 1024) is the same network in PyTorch with a cache and
SDPA in bf16, recorded as a CUDA graph, and takes turns with ours. A cache of 8192 for 256 sequences is 77 GB, so there
ours run one after the other. The floor of batch 1 is reading the weights once.
"""
import argparse
import time

import common
import models
from common import Results, Turns, arguments, reason, spread, sync


class Recorded:
    """The peer, timed as ours times itself: from start to end of a step, by the clock."""

    def __init__(self, batch, at):
        self.run_once = models.Decoder(batch, at).recorded()
        self.times = []

    def run(self, count):
        for _ in range(count):
            sync()
            t = time.perf_counter()
            self.run_once()
            sync()
            self.times.append(time.perf_counter() - t)


# batch, context, and whose turns
PLANS = [(256, 1024, ["softmax", "x1-state", "x2-state", "torch"]), (1, 1024, ["softmax", "x1-state", "torch"]),
         (256, 8192, ["softmax"]), (256, 8192, ["x2-state"]), (256, 8192, ["x1-state"])]
DRY = [(2, 16, ["softmax", "x1-state", "x2-state", "torch"]), (2, 40, ["x2-state"])]


def start(who, batch, at):
    if who == "torch":
        return Recorded(batch, at)
    phi, _, state = who.partition("-")
    tiny = ["--layers", "1", "--width", "32", "--heads", "2", "--vocab", "64"] if common.dry else []
    return Turns("decode_bench", "--device", "cuda", "--phi", phi, "--batch", str(batch), "--at", str(at), "--turns",
                 *(["--state"] if state else []), *tiny)


def measure(results, batch, at, who, copy):
    runners = {}

    def failed(w, e):
        results.failed(f"decode {w} batch {batch} at {at}", reason(e), ours=w != "torch")

    for w in who:
        try:
            runners[w] = start(w, batch, at)
        except Exception as e:
            failed(w, e)
    for _ in range(2 if common.dry else 10):
        for w in list(runners):
            try:
                runners[w].run(1 if common.dry else 10)
            except Exception as e:
                failed(w, e)
                del runners[w]
    for w, r in runners.items():
        s, p10, p90, rounds = spread(r.times)
        row = dict(ms=1e3 * s, p10=1e3 * p10, p90=1e3 * p90, rounds=rounds, tokens_s=batch / s)
        if isinstance(r, Turns):
            end = r.finish()
            # Of a cache the keys and values are read once, a state is read and written.
            moved = end["weights_bytes"] + end["cache_bytes"] * (2 if "state" in w else 1)
            row.update(cache_mb=end["cache_bytes"] / 1048576, weights_mb=end["weights_bytes"] / 1048576, fed_ms=end["fed_ms"],
                       floor_ms=moved / copy / 1e9)
            row["of_floor"] = row["ms"] / row["floor_ms"]
        results.add(kind="decode", name=("" if w == "torch" else "polyd ") + w, batch=batch, at=at, **row)
    runners.clear()
    if not common.dry:
        import torch
        torch.cuda.empty_cache()


def main():
    o = arguments(argparse.ArgumentParser())
    results = Results(o.out)
    _, copy = results.device()
    for batch, at, who in DRY if common.dry else PLANS:
        if time.monotonic() > o.until:
            results.left_out(f"decode batch {batch} at {at}")
            continue
        try:
            measure(results, batch, at, who, copy)
        except Exception as e:
            results.failed(f"decode batch {batch} at {at}", reason(e))
    results.end()


main()
