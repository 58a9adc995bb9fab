"""Attention on a GPU against its peers (kernels/PERFORMANCE.md 3): every shape and direction, taking turns in one process.

    python3 tests/bench/gpu/attention.py [--rows GROUP[,GROUP...]] [--out FILE] [--seconds N] [--per-row S] [--dry]

Groups, in order of importance: short (N = 197, 256), n1024, n8192, linear (x and x^2 in linear order, up to 65 536
tokens), second (tangents and second derivatives, against SDPA's math), d128, degrees (x^1 .. x^5 beside each other), formula (attention by formulas beside the built-in x^3).

Peers: scaled_dot_product_attention with each back end forced (the fastest is "best SDPA"), the materialised phi(q k') v
under torch.compile, FlexAttention's logarithm trick for even powers and sigmoid. N(0,1) inputs, each peer in the
layout that it likes, conversions not counted. Before anything is timed, ours is compared with the materialised form
in f64 on a part of the batch, into outputs filled with NaN; what is wrong is said and not timed.
"""
import argparse
import contextlib
import importlib
import math
import time

import torch

import common
from attention_peers import sdpa
from common import Polyd, Results, arguments, here, interleave, log, reason, sync

# group: B, N, H, d, causal
SHAPES = {
    "short": [(1024, 197, 12, 64, False), (1024, 256, 12, 64, False)],
    "n1024": [(128, 1024, 12, 64, False), (128, 1024, 12, 64, True)],
    "n8192": [(16, 8192, 12, 64, False), (16, 8192, 12, 64, True)],
    "linear": [(16, 8192, 12, 64, False), (16, 8192, 12, 64, True), (2, 65536, 12, 64, True)],
    "second": [(32, 1024, 12, 64, False)],
    "d128": [(512, 197, 6, 128, False), (64, 1024, 6, 128, False), (8, 8192, 6, 128, False)],
    "degrees": [(128, 1024, 12, 64, False)],
    "formula": [(128, 1024, 12, 64, False), (128, 1024, 12, 64, True)],
}
DRY = {"short": [(1, 20, 2, 16, False)], "n1024": [(1, 33, 1, 16, False), (1, 33, 1, 16, True)], "n8192": [(1, 40, 1, 16, True)],
       "linear": [(1, 70, 1, 16, True)], "second": [(1, 17, 2, 16, False)], "d128": [(1, 18, 1, 128, False)],
       "degrees": [(1, 20, 1, 16, False)], "formula": [(1, 20, 2, 16, False), (1, 20, 2, 16, True)]}


def phi_of(name, x, p, c, bias):
    return c * {"poly": lambda: x ** p, "sigmoid": lambda: torch.sigmoid(x + bias), "relu": lambda: torch.relu(x)}[name]()


def exact(q, k, v, phi, p, c, bias, causal):
    """In f64, row block by row block: A of a long sequence would not fit."""
    q, k, v = (t.double() for t in (q, k, v))
    n, rows = q.shape[-2], []
    for i in range(0, n, 2048):
        s = q[..., i:i + 2048, :] @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        seen = torch.ones(s.shape[-2], n, dtype=torch.bool, device=s.device).tril(i) if causal else None
        if phi == "softmax":
            a = (s if seen is None else s.masked_fill(~seen, float("-inf"))).softmax(-1)
        else:
            a = phi_of(phi, s, p, c, bias)
            a = a if seen is None else a * seen
        rows.append(a @ v)
    return torch.cat(rows, -2)


def plain(phi, p, c, causal, n):
    mask = torch.ones(n, n, dtype=torch.bool, device=common.device).tril() if causal else None

    def f(q, k, v):
        s = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        a = phi_of(phi, s, p, c, -math.log(n))
        if causal:
            a = a * mask
        return a @ v

    return torch.compile(f)


def flex(phi, p, n, causal):
    """phi(q k') v = exp(lse) softmax(log(phi + eps)) v - eps sum v: what FlexAttention can express of an unnormalised
    phi (kernels/PERFORMANCE.md 1)."""
    module = importlib.import_module("torch.nn.attention.flex_attention")
    compiled = torch.compile(module.flex_attention)
    how = {"return_aux": module.AuxRequest(lse=True)} if hasattr(module, "AuxRequest") else {"return_lse": True}
    eps = 1e-6
    mask = module.create_block_mask(lambda b, h, i, j: i >= j, None, None, n, n, device=common.device) if causal else None

    def score(s, b, h, i, j):
        f = s ** p if phi == "poly" else torch.relu(s) / n if phi == "relu" else torch.sigmoid(s - math.log(n))
        return torch.log(f + eps)

    def f(q, k, v):
        y, aux = compiled(q, k, v, score_mod=score, block_mask=mask, **how)
        lse = getattr(aux, "lse", aux)
        seen = v.cumsum(-2) if causal else v.sum(-2, keepdim=True)
        return (y * lse.exp().unsqueeze(-1) - eps * seen).to(v.dtype)

    return f


# name, formula, and the same by phi_of
FORMULAS = [("formula x3", "s^3/sqrt(n)", "poly", 3), ("formula relu", "relu(s)/n", "relu", 0),
            ("formula softmax", "exp(s)/rowsum(exp(s))", "softmax", 0)]


def no_grad(f):
    with torch.no_grad():
        return f()


def ours_of(group, n):
    """name, phi, degree, form or formula"""
    cubic = ("x3", "poly", 3, "quadratic")
    rest = [("sigmoid", "sigmoid", 0, "quadratic"), ("softmax", "softmax", 0, "auto"), ("x2", "poly", 2, "quadratic")]
    if group == "linear":
        return [("x1-linear", "poly", 1, "linear"), ("x2-linear", "poly", 2, "linear")] + ([cubic] if n <= 8192 else [])
    if group == "formula":
        return [cubic] + [(name, phi, p, text) for name, text, phi, p in FORMULAS]
    if group == "degrees":
        return [(f"x{p}", "poly", p, "quadratic") for p in range(1, 6)]
    return [cubic] + rest


class Case:
    """Inputs of one shape, for both sides."""

    def __init__(self, polyd, shape, dtype=torch.bfloat16):
        self.b, self.n, self.h, self.d, self.causal = shape
        b, n, h, d = shape[:4]
        self.qkv = polyd.randn((b, n, 3, h, d), dtype)
        self.q, self.k, self.v = (t.transpose(1, 2).contiguous().requires_grad_() for t in self.qkv.unbind(2))
        self.dy = polyd.randn((b, n, h, d), dtype)
        self.dyt = self.dy.transpose(1, 2).contiguous()
        self.y, self.dqkv = polyd.empty((b, n, h, d), dtype), polyd.empty((b, n, 3, h, d), dtype)
        self.sums = polyd.empty((b, h, n), torch.float32)
        self.kept = polyd.empty((b, h, 2, n), torch.float32) # what FORMULAS keep of a row
        self.work = 4.0 * b * h * n * n * d * (0.5 if self.causal else 1)

    def right(self, polyd, results, name, phi, p, c, bias, plan):
        """Whether the first sequence's first heads are what they should be."""
        self.y.fill_(float("nan"))
        sync()
        polyd.run(plan)
        polyd.sync()
        # Of a long sequence the last row blocks alone would do, but one head of one sequence is quick enough.
        heads = 1 if self.n > 4096 else min(2, self.h)
        want = exact(self.q[:1, :heads], self.k[:1, :heads], self.v[:1, :heads], phi, p, c, bias, self.causal).detach()
        got = self.y[:1].transpose(1, 2)[:, :heads].double()
        error = ((got - want).norm() / want.norm()).item()
        unwritten = no_such(self.y)
        if error < 2e-2 and unwritten == 0:
            return True
        return self.wrong(results, name, error, unwritten)

    def right_backward(self, polyd, results, name, phi, p, c, bias, plan):
        """The gradients of the first head; of long sequences only that all was written."""
        self.dqkv.fill_(float("nan"))
        sync()
        polyd.run(plan)
        polyd.sync()
        error, unwritten = 0.0, no_such(self.dqkv)
        if self.n <= 1024:
            few = [t[:1, :1].detach().double().requires_grad_() for t in (self.q, self.k, self.v)]
            y = exact(*few, phi, p, c, bias, self.causal)
            want = torch.stack(torch.autograd.grad(y, few, self.dyt[:1, :1].double()))[:, 0, 0]
            got = self.dqkv[0, :, :, 0].transpose(0, 1).double()
            error = max(((a - b).norm() / b.norm()).item() for a, b in zip(got, want))
        return error < 3e-2 and unwritten == 0 or self.wrong(results, name + " bwd", error, unwritten)

    def wrong(self, results, name, error, unwritten):
        log(f"WRONG: {name} N={self.n} causal={self.causal}: relative error {error:.3g}, {unwritten} not written; not timed")
        results.wrong(name=name, n=self.n, d=self.d, causal=self.causal, error=error, unwritten=unwritten)
        return False


def no_such(x):
    return torch.isnan(x).sum().item()


def compiled_peers(group, n, causal):
    """Those that take a compiler ten seconds each, where a bar names them."""
    makers, peers = {}, {}
    if group in ("n1024", "formula"):
        makers["compiled x3"] = lambda: plain("poly", 3, n ** -0.5, causal, n)
    if group in ("n1024", "n8192") and (common.dry or not causal):
        makers["flex x2"] = lambda: flex("poly", 2, n, causal)
        makers["flex sigmoid"] = lambda: flex("sigmoid", 0, n, causal)
    if group == "formula" and (common.dry or not causal):
        makers["flex relu"] = lambda: flex("relu", 0, n, causal)
    for name, make in makers.items():
        try:
            peers[name] = make()
        except Exception as e:
            log(f"{name}: {reason(e)}")
    return peers


def forms(polyd, results, group, shape, peaks, per_row):
    case = Case(polyd, shape)
    n, causal = case.n, case.causal
    made = compiled_peers(group, n, causal)
    for pass_ in ("fwd", "bwd"):
        factor = 2.5 if pass_ == "bwd" else 1
        floor = max(case.work * factor / peaks[0] / 1e9,
                    (14 if pass_ == "bwd" else 8) * case.b * case.h * n * case.d / peaks[1] / 1e9)
        runners, plans, right = {}, [], []
        for name, phi, p, form in ours_of(group, n):
            c, bias = {"poly": n ** -0.5, "relu": 1 / n}.get(phi, 1.0), (-math.log(n) if phi == "sigmoid" else 0.0)
            how = dict(phi=phi, degree=p, scale=c, bias=bias, causal=causal, form=form,
                       sums=case.sums if phi == "softmax" else None)
            if group == "formula" and form not in common.FORM:
                how = dict(formula=form, causal=causal, sums=case.kept)
            try:
                plan = polyd.attention(case.qkv, y=case.y, **how)
                plans.append(plan)
                if not case.right(polyd, results, name, phi, p, c, bias, plan):
                    continue
                right.append(name)
                if pass_ == "bwd":
                    plan = polyd.attention(case.qkv, "bwd", y=case.y, dy=case.dy, dqkv=case.dqkv, **how)
                    plans.append(plan)
                    if not case.right_backward(polyd, results, name, phi, p, c, bias, plan):
                        continue
                runners["polyd " + name] = (polyd.stream, lambda plan=plan: polyd.run(plan))
            except RuntimeError as e:
                results.failed(f"attention {group} N={n} {pass_} polyd {name}", reason(e))
        peers = {}
        for s in ("cudnn", "flash", "efficient", "math"):
            if s != "math" or n <= 4096:
                peers["sdpa " + s] = lambda s=s: sdpa(s, case.q, case.k, case.v, causal)
        for name, f in made.items():
            peers[name] = lambda f=f: f(case.q, case.k, case.v)
        for name, f in peers.items():
            try:
                if pass_ == "bwd":
                    out = f()
                    runners[name] = (here(), lambda out=out: torch.autograd.grad(out, (case.q, case.k, case.v), case.dyt,
                                                                                retain_graph=True))
                else:
                    runners[name] = (here(), lambda f=f: no_grad(f))
            except Exception as e:
                log(f"{name}: {reason(e)}")
        times = timed(results, f"attention {group} N={n} {pass_}", runners, per_row)
        fastest = min(((t[0], name) for name, t in times.items() if name.startswith("sdpa")), default=(float("nan"), ""))
        for name, (ms, p10, p90, rounds) in times.items():
            tflops = case.work * factor / ms / 1e9
            results.add(kind="attention", group=group, pass_=pass_, n=n, b=case.b, h=case.h, d=case.d, causal=causal, name=name,
                        ms=ms, p10=p10, p90=p90, rounds=rounds, tflops=tflops, of_peak=tflops / peaks[0],
                        of_floor=ms / floor, vs_best_sdpa=fastest[0] / ms, best_sdpa=fastest[1])
        runners.clear()
        peers.clear()
        for plan in plans:
            polyd.free(plan)
        memory_back()
    results.add(kind="clocks", n=n, clocks=common.clocks())


def timed(results, what, runners, per_row):
    failed = {}
    times = interleave(runners, budget_s=per_row, failed=failed)
    for name, why in failed.items():
        if name.startswith("polyd"):
            results.failed(f"{what} {name}", why)
    return times


def memory_back():
    if not common.dry:
        torch.cuda.empty_cache()


def second(polyd, results, shape, per_row):
    """Tangents (JVP) and the derivative of the gradient, x^3 against SDPA's math, which alone has them. In TF32: of bf16 we have
    neither."""
    dtype, name = torch.float32, "tf32"
    case = Case(polyd, shape, dtype)
    n, c = case.n, case.n ** -0.5
    polyd.tf32(True)
    torch.set_float32_matmul_precision("high")
    tangent, ddy = polyd.randn((case.b, n, 3, case.h, case.d), dtype), polyd.empty((case.b, n, case.h, case.d), dtype)
    tq, tk, tv = (t.transpose(1, 2).contiguous() for t in tangent.unbind(2))
    qkv = (case.q, case.k, case.v)
    how = dict(degree=3, scale=c)
    runners, plans = {}, []
    for kind, more in (("jvp", dict(y=case.y, tangent=tangent)),
                       ("bwd2", dict(dy=case.dy, tangent=tangent, dqkv=case.dqkv, ddy=ddy))):
        try:
            plan = polyd.attention(case.qkv, kind, **more, **how)
            plans.append(plan)
            runners["polyd " + kind] = (polyd.stream, lambda plan=plan: polyd.run(plan))
        except RuntimeError as e:
            results.failed(f"attention second polyd {kind}", reason(e))
    # Right before it is timed: the tangent against autograd of the materialised form, in f64, on one head.
    if "polyd jvp" in runners:
        case.y.fill_(float("nan"))
        sync()
        polyd.run(plans[0])
        polyd.sync()
        few = [t[:1, :1].detach().double() for t in (*qkv, tq, tk, tv)]
        f = lambda q, k, v: exact(q, k, v, "poly", 3, c, 0.0, case.causal)
        want = torch.autograd.functional.jvp(f, tuple(few[:3]), tuple(few[3:]))[1]
        error = ((case.y[:1].transpose(1, 2)[:, :1].double() - want).norm() / want.norm()).item()
        if not error < 2e-2:
            log(f"WRONG: polyd jvp {name}: relative error {error:.3g}; not timed")
            results.wrong(name="jvp " + name, n=n, error=error)
            del runners["polyd jvp"]

    def softmax(q, k, v):
        return (q @ k.transpose(-2, -1) * case.d ** -0.5).softmax(-1) @ v

    def peer_jvp(f):
        import torch.func
        return torch.func.jvp(f, tuple(t.detach() for t in qkv), (tq, tk, tv))[1]

    # SDPA's math, and the same written out: some versions refuse one or the other.
    for peer, f in (("sdpa-math", lambda q, k, v: sdpa("math", q, k, v, case.causal)), ("written-out", softmax)):
        runners[peer + " jvp"] = (here(), lambda f=f: peer_jvp(f))
        try:
            dyt = case.dyt.clone().requires_grad_()
            grads = torch.autograd.grad(f(*qkv), qkv, dyt, create_graph=True)
            runners[peer + " bwd2"] = (here(), lambda grads=grads, dyt=dyt: torch.autograd.grad(
                grads, (*qkv, dyt), (tq, tk, tv), retain_graph=True))
        except Exception as e:
            log(f"{peer} bwd2: {reason(e)}")
    times = timed(results, "attention second", runners, per_row)
    for key, (ms, p10, p90, rounds) in times.items():
        kind = key.rsplit(" ", 1)[1]
        peer = min((t[0] for k, t in times.items() if k.endswith(kind) and not k.startswith("polyd")), default=float("nan"))
        results.add(kind="second", pass_=kind, dtype=name, n=n, b=case.b, h=case.h, d=case.d, name=key, ms=ms, p10=p10, p90=p90,
                    rounds=rounds, vs_math=peer / ms)
    runners.clear()
    for plan in plans:
        polyd.free(plan)
    polyd.tf32(False)
    memory_back()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", default=",".join(SHAPES))
    parser.add_argument("--per-row", type=float, default=5.0, help="seconds of timing for one shape and direction")
    o = arguments(parser)
    groups = o.rows.split(",")
    for g in groups:
        if g not in SHAPES:
            parser.error(f"no group '{g}' ({', '.join(SHAPES)})")
    results, polyd = Results(o.out), Polyd()
    peaks = results.device()
    for g in groups:
        for shape in (DRY if common.dry else SHAPES)[g]:
            if time.monotonic() > o.until:
                results.left_out(f"attention {g} {shape}")
                continue
            try:
                if g == "second":
                    second(polyd, results, shape, o.per_row)
                else:
                    forms(polyd, results, g, shape, peaks, o.per_row)
            except Exception as e:  # memory, a kernel that fails: the other shapes are still wanted
                results.failed(f"attention {g} {shape}", reason(e))
                with contextlib.suppress(Exception):
                    memory_back()
    results.end()


main()
