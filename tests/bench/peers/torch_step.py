"""The honest peer on two cores: PyTorch training steps of the shapes that step_bench runs.

Run with the distribution's own interpreter and the OpenMP build of OpenBLAS with its core type set, or the
comparison is with a straw man (33 GFLOP/s of SSE3 kernels, or threads that fight):

    LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu/openblas-openmp OPENBLAS_CORETYPE=SKYLAKEX OMP_NUM_THREADS=2 \\
        /usr/bin/python3 tests/bench/peers/torch_step.py --model vit --phi softmax

Packages: python3-torch, libopenblas0-openmp. AdamW in f32, the same sizes, clipping for gpt.
"""
import argparse
import resource
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


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


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", choices=["vit", "gpt", "gpt1k"], default="vit")
    p.add_argument("--phi", choices=["softmax", "poly"], default="softmax")
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--batch", type=int, default=0)
    a = p.parse_args()
    torch.manual_seed(0)
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
        out = model(x)
        loss = F.cross_entropy(out.view(-1, out.shape[-1]), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        if a.model != "vit":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if i:
            times.append((time.perf_counter() - t, time.process_time() - c))
    wall = sorted(t[0] for t in times)
    cpu = sum(t[1] for t in times) / len(times)
    print(f"peer=torch-{torch.__version__} model={a.model} phi={a.phi} threads={torch.get_num_threads()} batch={batch} "
          f"steps={a.steps} median_s={wall[len(wall) // 2]:.4f} p10_s={wall[len(wall) // 10]:.4f} "
          f"p90_s={wall[len(wall) * 9 // 10]:.4f} cpu_s={cpu:.4f} "
          f"peak_rss_mb={resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f}")


main()
