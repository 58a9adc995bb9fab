"""The peer of step_bench on a GPU: training steps under torch.compile, bf16 autocast, fused AdamW.

    python3 tests/bench/gpu/torch_step.py --model gpt2|vit_s16|vit_b16 [--phi softmax|poly] [--batch N] [--steps N]

Sizes, batch and what a step is are those of step_bench. Softmax goes through scaled_dot_product_attention, x^3 is
materialised (no peer has it fused). Prints one line as step_bench does.
"""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, width, heads, phi, causal, n):
        super().__init__()
        self.heads, self.phi, self.causal, self.c = heads, phi, causal, n ** -0.5
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        b, n, w = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        if self.phi == "softmax":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            s = q @ k.transpose(-2, -1) * (w // self.heads) ** -0.5
            a = s * s * s * self.c
            y = (a.tril() if self.causal else a) @ v
        return self.proj(y.transpose(1, 2).reshape(b, n, w))


class Block(nn.Module):
    def __init__(self, width, heads, phi, causal, n):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads, phi, causal, n)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.form = "tanh" if causal else "none"

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.fc2(F.gelu(self.fc1(self.n2(x)), approximate=self.form))


class ViT(nn.Module):
    def __init__(self, width, heads, phi):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 16, 16)
        self.cls, self.pos = nn.Parameter(torch.zeros(1, 1, width)), nn.Parameter(torch.zeros(1, 197, width))
        self.blocks = nn.Sequential(*[Block(width, heads, phi, False, 197) for _ in range(12)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.pos
        return self.head(self.norm(self.blocks(x))[:, 0])


class GPT(nn.Module):
    def __init__(self, phi):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(50304, 768), nn.Embedding(1024, 768)
        self.blocks = nn.Sequential(*[Block(768, 12, phi, True, 1024) for _ in range(12)])
        self.norm, self.head = nn.LayerNorm(768), nn.Linear(768, 50304, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.blocks(x)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=["gpt2", "vit_s16", "vit_b16"], required=True)
    parser.add_argument("--phi", choices=["softmax", "poly"], default="softmax")
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--eager", action="store_true")
    o = parser.parse_args()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    if o.model == "gpt2":
        batch, model = o.batch or 16, GPT(o.phi)
        x = torch.randint(0, 50304, (batch, 1024), device="cuda")
        y = torch.randint(0, 50304, (batch * 1024,), device="cuda")
    else:
        base = o.model == "vit_b16"
        batch, model = o.batch or 256, ViT(768 if base else 384, 12 if base else 6, o.phi)
        x, y = torch.randn(batch, 3, 224, 224, device="cuda"), torch.randint(0, 1000, (batch,), device="cuda")
    model = model.cuda()
    for m in model.modules():
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.02)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    run = model if o.eager else torch.compile(model)

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            out = run(x)
            loss = F.cross_entropy(out.view(-1, out.shape[-1]).float(), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        if o.model == "gpt2":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()

    began, times = time.perf_counter(), []
    step()
    torch.cuda.synchronize()
    first = time.perf_counter() - began
    for _ in range(3):
        step()
    for _ in range(o.steps):
        torch.cuda.synchronize()
        t = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - t)
    times.sort()
    print(f"peer=torch-{torch.__version__}{'' if not o.eager else '-eager'} model={o.model} phi={o.phi} batch={batch} steps={o.steps} "
          f"median_s={times[len(times) // 2]:.4f} p10_s={times[len(times) // 10]:.4f} p90_s={times[len(times) * 9 // 10]:.4f} "
          f"first_s={first:.1f} device_mb={torch.cuda.max_memory_reserved() / 1048576:.0f}")


main()
