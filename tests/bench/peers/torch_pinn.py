"""One evaluation of a PINNsformer's loss and gradient, by PyTorch and by polyd in turns, in one run.

    OMP_NUM_THREADS=2 /usr/bin/python3 tests/bench/peers/torch_pinn.py build/release/bin/step_bench [--model pinn_micro]
        [--phi poly] [--pairs N]

The network is written out from its formulas: packed projections, one product for all heads, derivatives of u by torch.autograd.grad
with create_graph, as the reference implementation takes them. Convection with coefficient 50, 51 x 51 points and 453,561 parameters, or
pinn_micro, 21 x 21 and 33,641. The peer's memory is its largest resident size less what it held before its first evaluation;
polyd's is that of its whole process. Both run on two threads; on a shared machine the ratio of CPU times is the steadier one. Before it is timed:

    /usr/bin/python3 tests/bench/peers/torch_pinn.py --check SHARED/golden

holds u, the parts of the loss and its gradient to the vectors that polyd's own are held to. Packages: python3-torch, libopenblas0-openmp;
the distribution's OpenBLAS wants OPENBLAS_CORETYPE as torch_step.py says.
"""
import argparse
import glob
import json
import math
import os
import resource
import statistics
import struct
import subprocess
import sys
import time

import torch


# Width, hidden layers, edge of the grid, parameters: as in step_bench.
SIZES = {"pinn": (32, 256, 512, 51, 453561), "pinn_micro": (16, 64, 128, 21, 33641), "pinn_tiny": (8, 8, 8, 5, 1209)}


class Pinnsformer:
    def __init__(self, p, heads, phi, degree, scale, points):
        self.p, self.heads, self.phi, self.degree, self.scale, self.points = p, heads, phi, degree, scale, points

    def wave(self, x, at):
        return self.p[at + ".w1"] * torch.sin(x) + self.p[at + ".w2"] * torch.cos(x)

    def linear(self, x, at):
        return torch.nn.functional.linear(x, self.p[at + ".weight"], self.p[at + ".bias"])

    def three(self, x, at):
        x = self.wave(self.linear(x, at + ".0"), at + ".1")
        return self.linear(self.wave(self.linear(x, at + ".2"), at + ".3"), at + ".4")

    def attention(self, x, source, at):
        w, b, d = self.p[at + ".in_proj_weight"], self.p[at + ".in_proj_bias"], x.shape[-1]
        if source is x:
            q, k, v = torch.nn.functional.linear(x, w, b).split(d, -1)
        else:
            q = torch.nn.functional.linear(x, w[:d], b[:d])
            k, v = torch.nn.functional.linear(source, w[d:], b[d:]).split(d, -1)
        q, k, v = (t.reshape(-1, self.points, self.heads, d // self.heads).transpose(1, 2) for t in (q, k, v))
        s = (q / math.sqrt(d // self.heads)) @ k.transpose(2, 3)
        a = torch.softmax(s, -1) if self.phi == "softmax" else self.scale * s ** self.degree
        return self.linear((a @ v).transpose(1, 2).reshape(-1, self.points, d), at + ".out_proj")

    def layer(self, x, source, at):
        y = self.wave(x, at + ".act1")
        x = x + self.attention(y, y if source is None else source, at + ".attn")
        return x + self.three(self.wave(x, at + ".act2"), at + ".ff.linear")

    def __call__(self, x, t):
        embedded = self.linear(torch.stack((x, t), -1), "linear_emb")
        e = self.wave(self.layer(embedded, None, "encoder.layers.0"), "encoder.act")
        d = self.wave(self.layer(embedded, e, "decoder.layers.0"), "decoder.act")
        return self.three(d, "linear_out")[..., 0]


def evaluate(net, x, t, grid, residual, start):
    """u, the parts of the loss, and the gradient by every parameter."""
    x, t = x.detach().requires_grad_(), t.detach().requires_grad_()
    u = net(x, t)
    parts = residual(u, x, t)
    on = u.view(*grid, -1)
    parts = (parts.square().mean(), (on[:, -1] - on[:, 0]).square().mean(), (on[0, :, 0] - start(x.view(*grid, -1)[0, :, 0])).square().mean())
    return u, parts, torch.autograd.grad(sum(parts), list(net.p.values()))


def slope(u, by):
    return torch.autograd.grad(u, by, torch.ones_like(u), create_graph=True)[0]


def convection(beta):
    return lambda u, x, t: slope(u, t) + beta * slope(u, x), torch.sin


def reaction(rho):
    return (lambda u, x, t: slope(u, t) - rho * u * (1 - u),
            lambda x: torch.exp(-(x - math.pi) ** 2 / (2 * (math.pi / 4) ** 2)))


def shapes(d, hidden, head):
    three = lambda at, a, b, c: {f"{at}.0.weight": (b, a), f"{at}.0.bias": (b,), f"{at}.2.weight": (b, b), f"{at}.2.bias": (b,),
                                 f"{at}.4.weight": (c, b), f"{at}.4.bias": (c,), **{f"{at}.{i}.{w}": (1,) for i in (1, 3) for w in ("w1", "w2")}}
    out = {"linear_emb.weight": (d, 2), "linear_emb.bias": (d,)}
    for stack in ("encoder", "decoder"):
        at = stack + ".layers.0."
        out.update({at + "attn.in_proj_weight": (3 * d, d), at + "attn.in_proj_bias": (3 * d,), at + "attn.out_proj.weight": (d, d), at + "attn.out_proj.bias": (d,)})
        out.update(three(at + "ff.linear", d, hidden, d))
        out.update({name: (1,) for a in (at + "act1", at + "act2", stack + ".act") for name in (a + ".w1", a + ".w2")})
    return {**out, **three("linear_out", d, head, 1)}


def build(model, phi, device="cpu"):
    """A function that evaluates loss and gradient once, and returns the parts of the loss."""
    d, hidden, head, edge, count = SIZES[model]
    p = {}
    for name, shape in shapes(d, hidden, head).items():
        v = torch.full(shape, 1.0 if name.endswith((".w1", ".w2")) else 0.01, device=device)
        p[name] = (torch.nn.init.xavier_uniform_(v) if len(shape) == 2 else v).requires_grad_()
    assert sum(v.numel() for v in p.values()) == count
    net = Pinnsformer(p, 2, phi, 3, 1 / math.sqrt(edge), 5)
    step = torch.arange(edge, device=device) / (edge - 1)
    t = (step[:, None, None] + 1e-4 * torch.arange(5, device=device)).expand(edge, edge, 5).reshape(-1, 5).contiguous()
    x = (2 * math.pi * step)[None, :, None].expand(edge, edge, 5).reshape(-1, 5).contiguous()
    return lambda: evaluate(net, x, t, (edge, edge), *convection(50))[1]


def vectors(path):
    with open(path, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        body = f.read()
    config = json.loads(head.pop("__metadata__")["config"])
    return config, {name: torch.frombuffer(bytearray(body[slice(*t["data_offsets"])]), dtype={"F32": torch.float32, "F64": torch.float64}[t["dtype"]])
                    .view(t["shape"]).double() for name, t in head.items()}


def check(golden):
    worst, count = 0, 0
    for path in sorted(glob.glob(os.path.join(golden, "pinn", "*.safetensors"))):
        config, t = vectors(path)
        p = {name[6:]: v.requires_grad_() for name, v in t.items() if name.startswith("param/")}
        attention = config["attention"]
        if attention.get("scale_mode") == "learned":
            continue
        heads = config["model"]["heads"]
        scale = config.get("scale_init") if attention.get("scale_mode") == "fixed" else 1
        net = Pinnsformer(p, heads, attention["kind"], attention.get("p", 3), scale, config["num_step"])
        residual, start = convection(config["beta"]) if config["pde"] == "convection" else reaction(config["rho"])
        points = t["in/points_res"].reshape(-1, config["num_step"], 2)
        u, parts, grads = evaluate(net, points[..., 0], points[..., 1], (config["t_num"], config["x_num"]), residual, start)
        for name, got in [("out/pred_res", u), ("out/loss_res", parts[0]), ("out/loss_bc", parts[1]), ("out/loss_ic", parts[2])] + [("grad/" + n, g) for n, g in zip(p, grads)]:
            want = t[name].reshape(got.shape)
            error = ((got - want).abs().max() / want.abs().max().clamp(min=1e-12)).item()
            worst = max(worst, error)
            if not error < 1e-4:
                sys.exit(f"{os.path.basename(path)} {name}: {error:.1e} off")
        count += 1
    if not count:
        sys.exit(f"no vectors under {golden}")
    print(f"{count} vectors: at most {worst:.1e} off")


def cpu_of(pid):
    """Seconds of CPU of all threads."""
    task = f"/proc/{pid}/task"
    return sum(int(open(f"{task}/{t}/schedstat").read().split()[0]) for t in os.listdir(task)) / 1e9


def resident_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main():
    a = argparse.ArgumentParser()
    a.add_argument("program", nargs="?")
    a.add_argument("--model", choices=list(SIZES), default="pinn")
    a.add_argument("--phi", choices=["softmax", "poly"], default="softmax")
    a.add_argument("--pairs", type=int, default=9)
    a.add_argument("--check", metavar="GOLDEN")
    a = a.parse_args()
    if a.check:
        return check(a.check)
    if not a.program:
        sys.exit("which step_bench?")
    torch.set_num_threads(2)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    before = resident_mb()
    one = build(a.model, a.phi)
    loss = float(sum(one()))
    polyd = subprocess.Popen([a.program, "--model", a.model, "--phi", a.phi, "--threads", "2", "--turns"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert polyd.stdout.readline().strip() == "ready"
    ours, theirs = [], [] # seconds by the clock, and of CPU
    for i in range(a.pairs + 1):
        began, cpu = time.perf_counter(), time.process_time()
        one()
        theirs.append((time.perf_counter() - began, time.process_time() - cpu))
        cpu = cpu_of(polyd.pid)
        polyd.stdin.write("1\n")
        polyd.stdin.flush()
        ours.append((float(polyd.stdout.readline()), cpu_of(polyd.pid) - cpu))
    with open(f"/proc/{polyd.pid}/status") as f:
        polyd_mb = int(next(line for line in f if line.startswith("VmHWM")).split()[1]) / 1024
    polyd.communicate()
    del ours[0], theirs[0] # to warm up
    ratio = [statistics.median(b[k] / a_[k] for a_, b in zip(theirs, ours)) for k in (0, 1)]
    middle = lambda all, k: statistics.median(one[k] for one in all)
    peer_mb = resident_mb() - before
    load = os.getloadavg()
    print(f"model={a.model} phi={a.phi} peer=torch-{torch.__version__} threads=2 pairs={a.pairs} loss_at_start={loss:.4g} polyd_s={middle(ours, 0):.4f} "
          f"peer_s={middle(theirs, 0):.4f} time_ratio={ratio[0]:.3f} polyd_cpu_s={middle(ours, 1):.4f} peer_cpu_s={middle(theirs, 1):.4f} cpu_ratio={ratio[1]:.3f} "
          f"polyd_mb={polyd_mb:.0f} peer_extra_mb={peer_mb:.0f} memory_ratio={polyd_mb / peer_mb:.3f} load={load[0]:.1f}")


if __name__ == "__main__":
    main()
