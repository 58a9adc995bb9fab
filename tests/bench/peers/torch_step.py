"""The honest peer on two cores: PyTorch training steps of the shapes that step_bench runs.

Run with the distribution's own interpreter and the OpenMP build of OpenBLAS with its core type set, or the
comparison is with a straw man (33 GFLOP/s of SSE3 kernels, or threads that fight):

    LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu/openblas-openmp OPENBLAS_CORETYPE=SKYLAKEX OMP_NUM_THREADS=2 \\
        /usr/bin/python3 tests/bench/peers/torch_step.py --model vit --phi softmax

Packages: python3-torch, libopenblas0-openmp. AdamW in f32, the same sizes, clipping for gpt. --phi poly is x^3 as one
writes it; cubic is x^3 as well as one can write it in PyTorch, as a function of its own. Before cubic is timed:

    /usr/bin/python3 tests/bench/peers/torch_step.py --check SHARED/golden

holds it to the vectors that polyd's own kernels are held to, and a whole model's loss and gradients to those of poly.
"""
import argparse
import glob
import json
import os
import resource
import struct
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Cubic(torch.autograd.Function):
    """y = c (q k' scale)^3 v. Of N x N it keeps the logits alone; what else is N x N lives for a few heads at a time, so
    that it stays in the cache (15 % faster than all heads at once). Factors go into what is N x d, and tril_ masks
    logits in place: a logit of 0 has no weight and no derivative. Softmax in PyTorch keeps as much."""

    @staticmethod
    def forward(ctx, q, k, v, scale, c, causal):
        b, h, n, d = q.shape
        q, k, v = (t.reshape(b * h, -1, d) for t in (q * scale, k, v))
        s, y = q.new_empty(b * h, n, k.shape[1]), torch.empty_like(q)
        for i in Cubic.heads(s):
            torch.bmm(q[i], k[i].transpose(1, 2), out=s[i])
            if causal:
                s[i].tril_(k.shape[1] - n)
            torch.bmm(s[i].pow(3), v[i], out=y[i])
        ctx.save_for_backward(q, k, v, s)
        ctx.scale, ctx.c = scale, c
        return y.mul_(c).view(b, h, n, d)

    @staticmethod
    def backward(ctx, dy):
        q, k, v, s = ctx.saved_tensors
        b, h, n, d = dy.shape
        dy = (dy * ctx.c).reshape(b * h, n, d)
        dq, dk, dv = (torch.empty_like(t) for t in (q, k, v))
        for i in Cubic.heads(s):
            a = s[i].square()
            ds = torch.bmm(dy[i], v[i].transpose(1, 2)).mul_(a)
            a.mul_(s[i])
            torch.bmm(a.transpose(1, 2), dy[i], out=dv[i])
            torch.bmm(ds, k[i], out=dq[i])
            torch.bmm(ds.transpose(1, 2), q[i], out=dk[i])
        dq.mul_(3 * ctx.scale), dk.mul_(3)
        return tuple(t.view(b, h, -1, d) for t in (dq, dk, dv)) + (None, None, None)

    @staticmethod
    def heads(s):
        """So many heads at a time that their N x N take at most 1 MiB."""
        step = max(1, (1 << 20) // (s[0].numel() * s.element_size()))
        return (slice(i, i + step) for i in range(0, len(s), step))


class Attention(nn.Module):
    def __init__(self, width, heads, phi, causal, n):
        super().__init__()
        self.heads, self.phi, self.causal = heads, phi, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.c = n ** -0.5
        if causal:
            self.register_buffer("mask", torch.tril(torch.ones(n, n, dtype=torch.bool)))

    def forward(self, x):
        b, n, w = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        if self.phi == "cubic":
            y = Cubic.apply(q, k, v, (w // self.heads) ** -0.5, self.c, self.causal)
            return self.proj(y.transpose(1, 2).reshape(b, n, w))
        s = (q @ k.transpose(-2, -1)) * (w // self.heads) ** -0.5
        if self.phi == "softmax":
            if self.causal:
                s = s.masked_fill(~self.mask[:n, :n], float("-inf"))
            a = F.softmax(s, -1)
        else:
            a = s * s * s * self.c
            if self.causal:
                a = a * self.mask[:n, :n]
        return self.proj((a @ v).transpose(1, 2).reshape(b, n, w))


class Block(nn.Module):
    def __init__(self, width, heads, phi, causal, n):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads, phi, causal, n)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.fc2(F.gelu(self.fc1(self.n2(x))))


class ViT(nn.Module):
    def __init__(self, phi):
        super().__init__()
        self.patch = nn.Conv2d(3, 192, 4, 4)
        self.cls = nn.Parameter(torch.zeros(1, 1, 192))
        self.pos = nn.Parameter(torch.zeros(1, 257, 192))
        self.blocks = nn.Sequential(*[Block(192, 3, phi, False, 257) for _ in range(12)])
        self.norm, self.head = nn.LayerNorm(192), nn.Linear(192, 200)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.pos
        return self.head(self.norm(self.blocks(x))[:, 0])


class GPT(nn.Module):
    def __init__(self, phi, vocab):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, 384), nn.Embedding(256, 384)
        self.blocks = nn.Sequential(*[Block(384, 6, phi, True, 256) for _ in range(6)])
        self.norm, self.head = nn.LayerNorm(384), nn.Linear(384, vocab, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def vectors(path):
    """Tensors and description of a safetensors file of F32 and F64."""
    with open(path, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        body = f.read()
    config = json.loads(head.pop("__metadata__")["config"])
    of = {"F32": torch.float32, "F64": torch.float64}
    return config, {name: torch.frombuffer(bytearray(body[slice(*t["data_offsets"])]), dtype=of[t["dtype"]])
                    .view(t["shape"]).double() for name, t in head.items()}


def close(name, got, want, most):
    """Largest difference, as a share of the largest value."""
    error = ((got - want).abs().max() / want.abs().max().clamp(min=1e-30)).item()
    if not error <= most:
        sys.exit(f"{name}: {error:.2e} off, at most {most:.0e}")
    return error


def check(golden):
    """Cubic against the vectors of x^3 in f64 (which are stored in f32), then a whole model's loss and gradients."""
    worst, count = 0, 0
    for path in sorted(glob.glob(os.path.join(golden, "attention", "x3_*.safetensors"))):
        config, t = vectors(path)
        if config["scale_kind"] == "learnedhead":
            continue
        c = t["scale"].item() if config["scale_kind"] == "learned" else config["scale_value"]
        q, k, v = (t[x].requires_grad_() for x in "qkv")
        y = Cubic.apply(q, k, v, config["logit_scale"], c, config["causal"])
        y.backward(t["go"])
        for name, got in (("o", y), ("dq", q.grad), ("dk", k.grad), ("dv", v.grad)):
            if t[name].abs().max() > 0:
                worst = max(worst, close(f"{config['case']} {name}", got, t[name], 1e-6))
        count += 1
    if not count:
        sys.exit(f"no vectors of x^3 under {golden}")
    print(f"{count} vectors: at most {worst:.1e} off")
    for make, x, y in ((lambda phi: ViT(phi), torch.randn(2, 3, 64, 64).double(), torch.randint(0, 200, (2,))),
                       (lambda phi: GPT(phi, 97), torch.randint(0, 97, (2, 256)), torch.randint(0, 97, (512,)))):
        models = [make(phi).double() for phi in ("poly", "cubic")]
        models[1].load_state_dict(models[0].state_dict())
        losses = [F.cross_entropy(m(x).view(len(y), -1), y) for m in models]
        for loss in losses:
            loss.backward()
        worst = close("loss", losses[1], losses[0], 1e-12)
        for (name, a), b in zip(models[0].named_parameters(), models[1].parameters()):
            worst = max(worst, close(name, b.grad, a.grad, 1e-9))
        print(f"{type(models[0]).__name__}: loss and gradients at most {worst:.1e} off")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", choices=["vit", "gpt", "gpt1k"], default="vit")
    p.add_argument("--phi", choices=["softmax", "poly", "cubic"], default="softmax")
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--batch", type=int, default=0)
    p.add_argument("--autocast", action="store_true", help="products in bf16, as torch.autocast has them on a CPU")
    p.add_argument("--check", metavar="GOLDEN", help="compare instead of measuring")
    a = p.parse_args()
    torch.manual_seed(0)
    if a.check:
        check(a.check)
        return
    torch.set_flush_denormal(True)
    if a.model == "vit":
        batch = a.batch or 32
        model = ViT(a.phi)
        x, y = torch.randn(batch, 3, 64, 64), torch.randint(0, 200, (batch,))
    else:
        vocab = 50257 if a.model == "gpt" else 1024
        batch = a.batch or 8
        model = GPT(a.phi, vocab)
        x, y = torch.randint(0, vocab, (batch, 256)), torch.randint(0, vocab, (batch * 256,))
    for m in model.modules():
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.02)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1)
    times = []
    for i in range(a.steps + 1):
        t, c = time.perf_counter(), time.process_time()
        with torch.autocast("cpu", torch.bfloat16, enabled=a.autocast):
            out = model(x)
        loss = F.cross_entropy(out.float().view(-1, out.shape[-1]), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        if a.model != "vit":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if i:
            times.append((time.perf_counter() - t, time.process_time() - c))
    wall = sorted(t[0] for t in times)
    cpu = sum(t[1] for t in times) / len(times)
    print(f"peer=torch-{torch.__version__} model={a.model} phi={a.phi} "
          f"precision={'bf16' if a.autocast else 'fp32'} threads={torch.get_num_threads()} batch={batch} "
          f"steps={a.steps} median_s={wall[len(wall) // 2]:.4f} p10_s={wall[len(wall) // 10]:.4f} "
          f"p90_s={wall[len(wall) * 9 // 10]:.4f} cpu_s={cpu:.4f} "
          f"peak_rss_mb={resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f}")


main()
