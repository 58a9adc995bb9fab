"""Makes of bench.jsonl the table of bars (kernels/PERFORMANCE.md 3 and 4): what was measured, whether it is met, how far off.

    python3 tests/bench/gpu/report.py [--markdown] [--dry] FILE...

Without --markdown: a short table for a terminal. The last measurement of a thing counts; a bar without one is "not
measured". Rows of --dry runs are left out unless it is asked for here. Needs nothing but Python.
"""
import argparse
import json
import math
import sys


class Rows:
    def __init__(self, paths, dry):
        self.all = []
        for path in paths:
            with open(path) as f:
                for line in f:
                    try:
                        row = json.loads(line)
                    except ValueError:
                        continue  # the last line of a run that was cut off
                    if dry or not row.get("dry"):
                        self.all.append(row)

    def of(self, **want):
        return [r for r in self.all if all(r.get(k) == v for k, v in want.items())]

    def last(self, **want):
        found = self.of(**want)
        return found[-1] if found else None

    def ms(self, **want):
        r = self.last(**want)
        return r["ms"] if r else None


def over(a, b):
    return a / b if a and b else None


def attention(rows, n, pass_, causal=False, name="polyd x3", d=64, group=None):
    want = dict(kind="attention", n=n, pass_=pass_, causal=causal, name=name, d=d)
    return rows.last(**want, **({"group": group} if group else {}))


def vs_sdpa(n, causal=False, name="polyd x3"):
    def f(rows, pass_):
        r = attention(rows, n, pass_, causal, name)
        return r and r["vs_best_sdpa"]
    return f


def vs_floor(n):
    def f(rows, pass_):
        r = attention(rows, n, pass_)
        return r and r["of_floor"]
    return f


def rate(n):
    def f(rows, pass_):
        r = attention(rows, n, pass_)
        return r and r["tflops"]
    return f


def against(n, ours, theirs, causal=False, group=None):
    def f(rows, pass_):
        a, b = (attention(rows, n, pass_, causal, name, group=group) for name in (ours, theirs))
        return over(b and b["ms"], a and a["ms"])
    return f


def linear(n, causal, name):
    """Forward and backward together, best SDPA over ours."""
    def f(rows, _):
        best, mine = 0.0, 0.0
        for pass_ in ("fwd", "bwd"):
            r = attention(rows, n, pass_, causal, name, group="linear")
            if not r:
                return None
            mine += r["ms"]
            best += r["ms"] * r["vs_best_sdpa"]
        return best / mine
    return f


def degrees(rows, pass_):
    """The slowest of x^1 .. x^5 over the fastest."""
    ms = [attention(rows, 1024, pass_, name=f"polyd x{p}", group="degrees") for p in range(1, 6)]
    return max(r["ms"] for r in ms) / min(r["ms"] for r in ms) if all(ms) else None


def second(kind):
    def f(rows, _):
        r = rows.last(kind="second", pass_=kind, name="polyd " + kind)
        return r and r["vs_math"]
    return f


def step(model, key, name="polyd x3"):
    def f(rows, _):
        r = rows.last(kind="step", model=model, name=name)
        return r.get(key) if r else None
    return f


def step_against(model, theirs):
    return lambda rows, _: over(rows.ms(kind="step", model=model, name=theirs), rows.ms(kind="step", model=model, name="polyd x3"))


def rate_against(model, other):
    """FLOP a second of ours, as a share of another model's of ours."""
    def f(rows, _):
        a, b = (rows.last(kind="step", model=m, name="polyd x3") for m in (model, other))
        return over(a and a.get("tflops"), b and b.get("tflops"))
    return f


def optim(key, what, model="gpt2"):
    def f(rows, _):
        r = rows.last(kind="optim", model=model, name="polyd " + what)
        return r and r[key]
    return f


def decode(batch, at, ours, theirs):
    return lambda rows, _: over(rows.ms(kind="decode", batch=batch, at=at, name=theirs),
                                rows.ms(kind="decode", batch=batch, at=at, name=ours))


def decode_floor(name):
    def f(rows, _):
        r = rows.last(kind="decode", batch=1, at=1024, name=name)
        return r and r["of_floor"]
    return f


def job(kind, name, key):
    def f(rows, _):
        r = rows.last(kind=kind, name=name)
        return r and r[key]
    return f


FWD, BWD, ONE = "fwd", "bwd", ""
# what, pass, unit, least or most, must, stretch, figure, text beside the bar
BARS = [
    ("N=197, x^3 against best SDPA", FWD, "x", ">=", 2.0, None, vs_sdpa(197)),
    ("N=197, x^3 against best SDPA", BWD, "x", ">=", 2.0, None, vs_sdpa(197)),
    ("N=197, time over its floor", FWD, "x", "<=", 1.35, 1.2, vs_floor(197)),
    ("N=197, time over its floor", BWD, "x", "<=", 1.6, 1.4, vs_floor(197)),
    ("N=256, x^3 against best SDPA", FWD, "x", ">=", 1.5, None, vs_sdpa(256)),
    ("N=256, x^3 against best SDPA", BWD, "x", ">=", 1.5, None, vs_sdpa(256)),
    ("N=256, time over its floor", FWD, "x", "<=", None, 1.15, vs_floor(256)),
    ("N=256, time over its floor", BWD, "x", "<=", None, 1.4, vs_floor(256)),
    ("N=1024, x^3 against best SDPA", FWD, "x", ">=", 1.35, None, vs_sdpa(1024)),
    ("N=1024, x^3 against best SDPA", BWD, "x", ">=", 1.2, None, vs_sdpa(1024)),
    ("N=1024, rate", FWD, "TFLOP/s", ">=", None, 560, rate(1024)),
    ("N=1024, rate", BWD, "TFLOP/s", ">=", None, 460, rate(1024)),
    ("N=1024 causal, x^3 against best SDPA", FWD, "x", ">=", 1.4, None, vs_sdpa(1024, True)),
    ("N=1024 causal, x^3 against best SDPA", BWD, "x", ">=", 1.2, None, vs_sdpa(1024, True)),
    ("N=8192, x^3 against best SDPA", FWD, "x", ">=", 1.25, None, vs_sdpa(8192)),
    ("N=8192, x^3 against best SDPA", BWD, "x", ">=", 1.15, None, vs_sdpa(8192)),
    ("N=8192, rate", FWD, "TFLOP/s", ">=", None, 640, rate(8192)),
    ("N=8192, rate", BWD, "TFLOP/s", ">=", None, 560, rate(8192)),
    ("x^2 against FlexAttention's logarithm trick, N=1024", FWD, "x", ">=", 2.0, 3.0, against(1024, "polyd x2", "flex x2")),
    ("x^2 against FlexAttention's logarithm trick, N=1024", BWD, "x", ">=", 2.0, 3.0, against(1024, "polyd x2", "flex x2")),
    ("sigmoid against FlexAttention's trick, N=1024", FWD, "x", ">=", 2.0, 3.0, against(1024, "polyd sigmoid", "flex sigmoid")),
    ("sigmoid against FlexAttention's trick, N=1024", BWD, "x", ">=", 2.0, 3.0, against(1024, "polyd sigmoid", "flex sigmoid")),
    ("x^3 against its materialised form, compiled, N=1024", FWD, "x", ">=", 6.0, 9.0, against(1024, "polyd x3", "compiled x3")),
    ("x^3 against its materialised form, compiled, N=1024", BWD, "x", ">=", 6.0, 9.0, against(1024, "polyd x3", "compiled x3")),
    ("sigmoid against best SDPA, N=1024", FWD, "x", ">=", 1.0, 1.15, vs_sdpa(1024, False, "polyd sigmoid")),
    ("sigmoid against best SDPA, N=1024", BWD, "x", ">=", 1.0, 1.15, vs_sdpa(1024, False, "polyd sigmoid")),
    ("x^1 .. x^5, slowest over fastest, N=1024", FWD, "x", "<=", 1.05, None, degrees),
    ("x^1 .. x^5, slowest over fastest, N=1024", BWD, "x", "<=", 1.05, None, degrees),
    ("x^3 as a formula, time over the built-in's, N=1024", FWD, "x", "<=", 1.05, None, against(1024, "polyd x3", "polyd formula x3", group="formula")),
    ("x^3 as a formula, time over the built-in's, N=1024", BWD, "x", "<=", 1.05, None, against(1024, "polyd x3", "polyd formula x3", group="formula")),
    ("relu(s)/n as a formula against FlexAttention's trick, N=1024", FWD, "x", ">=", 2.0, None, against(1024, "polyd formula relu", "flex relu", group="formula")),
    ("relu(s)/n as a formula against FlexAttention's trick, N=1024", BWD, "x", ">=", 2.0, None, against(1024, "polyd formula relu", "flex relu", group="formula")),
    ("x^3 as a formula against its materialised form, compiled", FWD, "x", ">=", 6.0, None, against(1024, "polyd formula x3", "compiled x3", group="formula")),
    ("x^3 as a formula against its materialised form, compiled", BWD, "x", ">=", 6.0, None, against(1024, "polyd formula x3", "compiled x3", group="formula")),
    ("x linear, N=8192, forward and backward, against best SDPA", ONE, "x", ">=", 20, 35, linear(8192, False, "polyd x1-linear")),
    ("x linear, N=8192 causal, the same", ONE, "x", ">=", 8, 15, linear(8192, True, "polyd x1-linear")),
    ("x^2 linear, N=8192, the same", ONE, "x", ">=", 1.8, 3, linear(8192, False, "polyd x2-linear")),
    ("x^2 linear, N=65 536 causal, the same", ONE, "x", ">=", 6, 10, linear(65536, True, "polyd x2-linear")),
    ("tangents of x^3, N=1024, against SDPA's math (TF32)", ONE, "x", ">=", 3.5, 5, second("jvp")),
    ("second derivatives of x^3, N=1024, against SDPA's math (TF32)", ONE, "x", ">=", 3.5, 5, second("bwd2")),
    ("GPT-2 124M, 524 288 tokens, x^3, one step", ONE, "ms", "<=", 800, 720, step("gpt2", "ms")),
    ("GPT-2 124M against torch.compile", ONE, "x", ">=", 1.3, 1.45, step_against("gpt2", "torch compile")),
    ("GPT-2 124M, peak memory over torch.compile's", ONE, "x", "<=", 0.75, 0.6, step("gpt2", "memory_of_torch")),
    ("ViT-B/16, 1024 images, x^3, one step", ONE, "ms", "<=", 205, 185, step("vit_b16", "ms")),
    ("ViT-B/16 against torch.compile and best SDPA", ONE, "x", ">=", 1.35, None, step_against("vit_b16", "torch compile")),
    ("ViT-B/16, peak memory over torch.compile's", ONE, "x", "<=", 0.75, 0.6, step("vit_b16", "memory_of_torch")),
    ("ViT-S/16 against torch.compile", ONE, "x", ">=", 2.0, 3.0, step_against("vit_s16", "torch compile")),
    ("DeiT-Ti against torch.compile", ONE, "x", ">=", 2.0, 3.0, step_against("deit_ti", "torch compile")),
    ("Swin-T, FLOP a second over our ViT-S/16's", ONE, "x", ">=", 0.85, None, rate_against("swin_t", "vit_s16")),
    ("XCiT-S12/16, FLOP a second over our ViT-S/16's", ONE, "x", ">=", 0.8, None, rate_against("xcit_s12", "vit_s16")),
    ("tiny ViT against PyTorch eager", ONE, "x", ">=", 3.0, None, step_against("tiny", "torch eager")),
    ("tiny ViT against torch.compile's reduce-overhead", ONE, "x", ">=", 1.5, None, step_against("tiny", "torch graphs")),
    ("PINNsformer, loss and gradient, softmax, against PyTorch eager", ONE, "x", ">=", 5.0, 20, step("pinn", "vs_torch", "polyd softmax")),
    ("PINNsformer, loss and gradient, x^3, against PyTorch eager", ONE, "x", ">=", 5.0, 20, step("pinn", "vs_torch")),
    ("AdamW and global clip, GPT-2 124M, over its floor of bytes", ONE, "x", "<=", 1.15, 1.05, optim("of_floor", "adamw+clip")),
    ("AdamW and global clip, against torch's fused", ONE, "x", ">=", 1.5, None, optim("vs_torch", "adamw+clip")),
    ("mSGDW, over its floor of bytes", ONE, "x", "<=", None, 1.05, optim("of_floor", "msgdw")),
    ("decode, x state against our cache, batch 256 at 1024", ONE, "x", ">=", 3.0, None, decode(256, 1024, "polyd x1-state", "polyd softmax")),
    ("decode, x state against PyTorch's cache, batch 256 at 1024", ONE, "x", ">=", 2.0, None, decode(256, 1024, "polyd x1-state", "torch")),
    ("decode, x^2 state against our cache, batch 256 at 8192", ONE, "x", ">=", 5.0, None, decode(256, 8192, "polyd x2-state", "polyd softmax")),
    ("decode, batch 1, over the floor of reading", ONE, "x", "<=", 1.3, None, decode_floor("polyd softmax")),
    ("job accepted to first step done, vit_small, tuned before", ONE, "s", "<=", 3.0, 1.0, job("first-step", "vit_small, again", "first_step_s")),
    ("the same, first job of a GPU", ONE, "s", "<=", 3.0, 1.0, job("first-step", "vit_small, first job of a GPU", "first_step_s")),
    ("data parallel over 2 GPUs, share of twice one", ONE, "x", ">=", 0.95, None, lambda rows, _: (rows.last(kind="scaling") or {}).get("efficiency")),
]
NOT_BY_US = [
    ("against TritonSigmoid, llm.c, FlashAttention-3", "not measured: not installed beside PyTorch; floors and best SDPA stand for them"),
    ("determinism at <= 3 % cost", "not measured: there is no other mode to compare with; every sum has a fixed order"),
]


def number(v, unit):
    return "-" if v is None else f"{v:.3g}{'' if unit == 'x' else ' ' + unit}" + ("x" if unit == "x" else "")


def judge(op, bar, v):
    """How far off, or met."""
    if bar is None:
        return ""
    good = v >= bar if op == ">=" else v <= bar
    return "met" if good else f"missed: {v / bar:.2f} of it" if op == ">=" else f"missed: {v / bar:.2f} times it"


def results(rows):
    for what, pass_, unit, op, must, stretch, figure in BARS:
        v = figure(rows, pass_)
        v = None if v is None or not math.isfinite(v) else v
        where = {FWD: ", forward", BWD: ", backward", ONE: ""}[pass_]
        bars = " ".join(f"{label} {op} {number(b, unit)}" for label, b in (("must", must), ("stretch", stretch)) if b is not None)
        yield what + where, bars, number(v, unit) if v is not None else "not measured", \
            "" if v is None else "; ".join(x for x in (judge(op, must, v), stretch is not None and judge(op, stretch, v) == "met" and "stretch met" or "") if x)


def kernel_lines(rows):
    """The heavy kernels alone (device_bench): the last measurement of each."""
    last = {r["name"]: r for r in rows.of(kind="kernel")}
    for name, r in last.items():
        yield name, f"{r['ms']:.3f} ms", f"{r['gb_s'] / 1000:.2f} TB/s", f"{r['tflops']:.0f} TFLOP/s", f"{r['of_floor']:.2f}x"


def job_lines(rows):
    """The rate of jobs with a real data pipeline."""
    last = {r["name"]: r for r in rows.of(kind="job")}
    for name, r in last.items():
        yield f"{name}: {r['rate']:.0f}/s, {r['step_ms']:.2f} ms a step, {100 * r['data_wait']:.1f} % of it waiting for data"


def device_lines(rows):
    seen = []
    for r in rows.of(kind="device"):
        line = f"{r['gpu']}, driver {r['driver']}, torch {r['torch']} (CUDA {r['cuda']}, cuDNN {r['cudnn']}), " \
            f"product {r['matmul_tflops']:.0f} TFLOP/s, copy {r['copy_tbs']:.2f} TB/s, clocks {r['clocks']}; `{r['command']}`, {r['date']} UTC"
        seen.append(line)
    return seen


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("files", nargs="+")
    o = parser.parse_args()
    try:
        rows = Rows(o.files, o.dry)
    except OSError as e:
        sys.exit(str(e))
    table = list(results(rows))
    if any(r.get("dry") for r in rows.all):
        print("A TRIAL: these figures mean nothing." + ("\n" if o.markdown else ""))
    if o.markdown:
        for line in device_lines(rows):
            print(f"- {line}")
        print("\n| bar (kernels/PERFORMANCE.md 3, 4) | bar | figure | |\n|---|---|---|---|")
        for line in table:
            print("| " + " | ".join(line) + " |")
        for what, why in NOT_BY_US:
            print(f"| {what} | | {why} | |")
    else:
        for what, bars, figure, verdict in table:
            if figure != "not measured":
                print(f"{what:<66} {figure:>12}  {verdict}")
        print(f"{sum(f[2] != 'not measured' for f in table)} of {len(table)} bars measured, {sum('met' in f[3] and 'missed' not in f[3] for f in table)} met")
    jobs = list(job_lines(rows))
    if jobs and o.markdown:
        print()
    for line in jobs:
        print(("- job " if o.markdown else "job ") + line)
    kernels = list(kernel_lines(rows))
    if kernels and o.markdown:
        print("\n| kernel alone (device_bench) | median | bytes counted | operations | over its floor |\n|---|---|---|---|---|")
    for line in kernels:
        print("| " + " | ".join(line) + " |" if o.markdown else f"{line[0]:<34} " + " ".join(f"{x:>13}" for x in line[1:]))
    if o.markdown and rows.of(kind="wrong") + rows.of(kind="failed") + rows.of(kind="left-out"):
        print()
    for kind in ("wrong", "failed", "left-out"):
        for r in rows.of(kind=kind):
            facts = "  ".join(f"{k}={v}" for k, v in r.items() if k not in ("kind", "date", "dry"))
            print(("- " if o.markdown else "") + f"{kind.upper()}: {facts}")


if __name__ == "__main__":
    main()
