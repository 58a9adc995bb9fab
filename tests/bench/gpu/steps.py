"""Whole training steps against torch.compile (kernels/PERFORMANCE.md 4): ours and the peers' take turns on one GPU.

    python3 tests/bench/gpu/steps.py [--models NAME[,NAME...]] [--peers KIND[,KIND...]] [--out FILE] [--seconds N] [--dry]

gpt2: 524 288 tokens a step in 16 parts; vit_b16, vit_s16: 1024 pictures in four; deit_ti: 1024; tiny: 64 of 28 pixels,
where starting kernels takes the time; swin_t, xcit_s12: 1024 pictures in eight, without a peer: their bar is the share of
vit_s16's FLOP a second (products and attention as step_bench counts them) that they reach. One step is forward, backward, clipping (gpt2) and AdamW. Peers: bf16
autocast, fused AdamW, softmax by the SDPA back end that is fastest at this shape. Kinds: compile (of softmax), x3 (the
materialised cube under torch.compile), eager and graphs (torch.compile's reduce-overhead), for tiny. Memory is what
each allocated at most; `first_s` is what it takes from nothing to the end of the first step, compiling included.
"""
import argparse
import signal
import sys
import time

import torch

import attention_peers
import common
import models
from common import Results, Turns, arguments, reason, spread, sync

SIZES = {"gpt2": "tokens", "vit_b16": "images", "vit_s16": "images", "deit_ti": "images", "tiny": "images",
         "swin_t": "images", "xcit_s12": "images"}
USUAL = {"gpt2": ["compile"], "vit_b16": ["compile"], "vit_s16": ["compile"], "deit_ti": ["compile"],
         "tiny": ["eager", "graphs"], "swin_t": [], "xcit_s12": []}


class Peer:
    def __init__(self, kind, model, batch, parts, backend):
        self.kind, self.parts = kind, parts
        began = time.perf_counter()
        if not common.dry:
            torch.cuda.reset_peak_memory_stats()
        self.before = 0 if common.dry else torch.cuda.memory_allocated()
        self.net, self.x, self.y = models.build(model, "poly" if kind == "x3" else "softmax", batch)
        self.clip = model == "gpt2"
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1,
                                     **({} if common.dry else {"fused": True}))
        self.run_net = self.net if kind == "eager" else torch.compile(
            self.net, **({"mode": "reduce-overhead"} if kind == "graphs" else {}))
        self.backend = backend
        self.step()
        sync()
        self.first_s = time.perf_counter() - began
        for _ in range(1 if common.dry else 3):
            self.step()
        sync()
        self.memory_mb = 0 if common.dry else (torch.cuda.max_memory_allocated() - self.before) / 1048576
        self.times = []

    def step(self):
        if self.kind == "graphs" and not common.dry:
            torch.compiler.cudagraph_mark_step_begin()
        self.opt.zero_grad(set_to_none=True)
        with attention_peers.only(self.backend):
            for _ in range(self.parts):
                with torch.autocast(common.device, torch.bfloat16):
                    loss = self.run_net(self.x, self.y) / self.parts
                loss.backward()
        if self.clip:
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.opt.step()

    def run(self, count):
        for _ in range(count):
            sync()
            t = time.perf_counter()
            self.step()
            sync()
            self.times.append(time.perf_counter() - t)


def measure(results, model, kinds, o):
    batch, parts = (2, 2 if model == "gpt2" else 1) if common.dry else models.STEP[model]
    units = batch * parts * (1024 if model == "gpt2" else 1)
    program = "tiny" if common.dry else model
    shape = (batch, 12, 1024, 64, True) if model == "gpt2" else (batch, 6, 197, 64, False)
    backend = None if model == "tiny" or not kinds else attention_peers.fastest(*((1, 1, 8, 16, False) if common.dry else shape))
    runners = {}
    # Ours first: each says how much memory came into use while nothing else runs.
    for phi, name in (("poly", "polyd x3"), ("softmax", "polyd softmax")):
        try:
            runners[name] = Turns("step_bench", "--device", "cuda", "--precision", "bf16", "--model", program, "--phi", phi,
                                  "--batch", str(batch), "--parts", str(parts), "--turns")
        except Exception as e:
            results.failed(f"step {model} {name}", reason(e))
    for kind in kinds:
        if time.monotonic() > o.until:
            results.left_out(f"step {model} torch {kind}")
            continue
        try:
            runners["torch " + kind] = Peer(kind, model, batch, parts, backend)
        except Exception as e:
            results.failed(f"step {model} torch {kind}", reason(e), ours=False)
    began, done, stopped = time.monotonic(), 0, None
    try:
        while done < (2 if common.dry else 200):
            for name in list(runners):
                try:
                    runners[name].run(1 if common.dry or model != "tiny" else 20)
                except Exception as e:
                    results.failed(f"step {model} {name}", reason(e), ours=name.startswith("polyd"))
                    del runners[name]
            done += 1
            now = time.monotonic()
            # --seconds is when nothing new begins; tests/gpu/run stops the program a third of it later.
            if now > o.until + o.seconds / 4 or (now - began > o.per_model and done >= 5):
                break
    except Stopped as e:
        stopped = e
    rows = {}
    for name, r in runners.items():
        if not r.times:
            continue
        s, p10, p90, rounds = spread(r.times)
        row = dict(ms=1e3 * s, p10=1e3 * p10, p90=1e3 * p90, rounds=rounds, rate=units / s, unit=SIZES[model] + "/s")
        if isinstance(r, Turns):
            try:
                end = r.finish()
                row.update(memory_mb=end["device_mb"], first_s=end["first_s"], arena_mb=end["arena_mb"], nodes=end["nodes"],
                           eager=end["eager"], tflops=1e-3 * end["gflop"] / s)
            except Exception as e:  # whoever stops this program stops ours too
                results.failed(f"step {model} {name}", reason(e))
        else:
            row.update(memory_mb=r.memory_mb, first_s=r.first_s, sdpa=str(backend))
        rows[name] = row
    peer = min((row["ms"] for name, row in rows.items() if name.startswith("torch")), default=float("nan"))
    less = [row.get("memory_mb") for name, row in rows.items() if name in ("torch compile", "torch graphs")]
    for name, row in rows.items():
        results.add(kind="step", model=model, name=name, batch=batch, parts=parts, **row, vs_torch=peer / row["ms"],
                    memory_of_torch=row["memory_mb"] / less[0] if less and less[0] and "memory_mb" in row else float("nan"))
        if row.get("eager"):
            results.failed(f"step {model} {name}", f"{row['eager']:.0f} runs outside the recording")
    if stopped:
        raise stopped
    runners.clear()
    if not common.dry:
        torch.compiler.reset()
        torch.cuda.empty_cache()
    results.add(kind="clocks", model=model, clocks=common.clocks())


class Stopped(BaseException):
    """SIGTERM: what was measured becomes rows."""


def stop(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # timeout(1) sends it twice: to its child and to its group
    raise Stopped


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default=",".join(SIZES))
    parser.add_argument("--peers", help="instead of the usual ones: compile, x3, eager, graphs, or none")
    parser.add_argument("--per-model", type=float, default=30.0, help="seconds of steps for one model, compiling not counted")
    o = arguments(parser)
    results = Results(o.out)
    signal.signal(signal.SIGTERM, stop)
    torch.set_float32_matmul_precision("high")
    if common.dry:
        o.per_model = 1
    results.device()
    for model in o.models.split(","):
        if model not in SIZES:
            parser.error(f"no model '{model}' ({', '.join(SIZES)})")
        if time.monotonic() > o.until:
            results.left_out(f"step {model}")
            continue
        kinds = USUAL[model] if o.peers is None else [k for k in o.peers.split(",") if k != "none"]
        try:
            measure(results, model, kinds, o)
        except Exception as e:
            results.failed(f"step {model}", reason(e))
        except Stopped:
            sys.exit(1)
    results.end()


main()
