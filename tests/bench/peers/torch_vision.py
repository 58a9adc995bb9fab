"""The honest peer of Swin-T and XCiT-S12/16: PyTorch training steps of what step_bench runs as swin_t and xcit_s12.

    build/test/bin/step_bench --model swin_t --batch 2 --precision fp64 --dump FILE
    LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu/openblas-openmp OPENBLAS_CORETYPE=SKYLAKEX OMP_NUM_THREADS=2 \\
        /usr/bin/python3 tests/bench/peers/torch_vision.py --model swin_t --check FILE

holds loss and every gradient in f64 to polyd's, and prints how far polyd's f32 (--dump without --precision) and the
peer's own f32 are from it; without --check it measures. Swin-T is torchvision's (Debian:
python3-torchvision), XCiT is written here in plain PyTorch, attention by softmax. AdamW in f32, images of 224, batch 8,
without stochastic depth. extra_mb: the peak of the process beyond what it held before the model and beyond weights,
gradients and moments.
"""
import argparse
import json
import math
import re
import resource
import struct
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision


class CrossCovariance(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.temperature = nn.Parameter(torch.ones(heads, 1, 1))
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        b, n, w = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, w // self.heads).permute(2, 0, 3, 4, 1)  # (B, H, d, N)
        a = F.softmax(F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1) * self.temperature, -1)
        return self.proj((a @ v).permute(0, 3, 1, 2).reshape(b, n, w))


class ClassAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, u):
        b, n, w = u.shape
        q, k, v = self.qkv(u).view(b, n, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        a = F.softmax((q[:, :, :1] * k).sum(-1) * (w // self.heads) ** -0.5, -1)
        row = self.proj((a.unsqueeze(2) @ v).transpose(1, 2).reshape(b, 1, w))
        return torch.cat([row, u[:, 1:]], 1)


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)))


class LocalInteraction(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.bn = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, groups=width)

    def forward(self, x, side):
        b, n, w = x.shape
        x = x.transpose(1, 2).reshape(b, w, side, side)
        return self.conv2(self.bn(F.gelu(self.conv1(x)))).flatten(2).transpose(1, 2)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width, 1e-6) for _ in range(3))
        self.attn, self.local_mp, self.mlp = CrossCovariance(width, heads), LocalInteraction(width), Mlp(width)
        self.gamma1, self.gamma2, self.gamma3 = (nn.Parameter(torch.ones(width)) for _ in range(3))

    def forward(self, x, side):
        x = x + self.gamma1 * self.attn(self.norm1(x))
        x = x + self.gamma3 * self.local_mp(self.norm3(x), side)
        return x + self.gamma2 * self.mlp(self.norm2(x))


class ClassBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, 1e-6), nn.LayerNorm(width, 1e-6)
        self.attn, self.mlp = ClassAttention(width, heads), Mlp(width)
        self.gamma1, self.gamma2 = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))

    def forward(self, x):
        x = self.norm2(x + self.gamma1 * self.attn(self.norm1(x)))
        return x + torch.cat([self.gamma2 * self.mlp(x[:, :1]), x[:, 1:]], 1)


class Stem(nn.Module):
    def __init__(self, width):
        super().__init__()
        steps, before = [], 3
        for i in range(4):
            after = width >> (3 - i)
            steps += [nn.Sequential(nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after)), nn.GELU()]
            before = after
        self.proj = nn.Sequential(*steps[:-1])

    def forward(self, x):
        return self.proj(x)


class Positions(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.token_projection = nn.Conv2d(64, width, 1)

    def forward(self, side):
        at = 2 * math.pi * torch.arange(1, side + 1, dtype=self.token_projection.weight.dtype) / (side + 1e-6)
        at = at[:, None] / 10000 ** (2 * torch.div(torch.arange(32), 2, rounding_mode="floor") / 32)
        code = torch.stack([at[:, 0::2].sin(), at[:, 1::2].cos()], 2).flatten(1)
        both = torch.cat([code[:, None].expand(side, side, 32), code[None].expand(side, side, 32)], 2)
        return self.token_projection(both.permute(2, 0, 1)[None])


class XCiT(nn.Module):
    def __init__(self, width=384, depth=12, heads=8, classes=1000):
        super().__init__()
        self.patch_embed, self.pos_embeder = Stem(width), Positions(width)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.cls_attn_blocks = nn.ModuleList(ClassBlock(width, heads) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width, 1e-6), nn.Linear(width, classes)

    def forward(self, x):
        x = self.patch_embed(x)
        side = x.shape[-1]
        x = (x + self.pos_embeder(side)).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x, side)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1)
        for block in self.cls_attn_blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def swin_name(name):
    """Of torchvision's for the name of Swin's authors."""
    name = name.replace("patch_embed.proj", "features.0.0").replace("patch_embed.norm", "features.0.2")
    name = re.sub(r"layers\.(\d)\.blocks", lambda m: f"features.{2 * int(m[1]) + 1}", name)
    name = re.sub(r"layers\.(\d)\.downsample", lambda m: f"features.{2 * int(m[1]) + 2}", name)
    return name.replace("mlp.fc1", "mlp.0").replace("mlp.fc2", "mlp.3")


def tensors(path):
    of = {"F64": torch.float64, "F32": torch.float32, "I32": torch.int32, "U8": torch.uint8}
    with open(path, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        body = bytearray(f.read())
    return {name: torch.frombuffer(body[slice(*t["data_offsets"])], dtype=of[t["dtype"]]).view(t["shape"]) for name, t in head.items()
            if name != "__metadata__"}


def derive(model, t):
    """Loss and gradients by name, in the type of the model's weights."""
    model.zero_grad(set_to_none=True)
    images = (t["input"].float() / 255 - 0.5) / 0.25  # pixels are normalised in f32
    loss = F.cross_entropy(model(images.to(next(model.parameters()).dtype)), t["target"].long())
    loss.backward()
    return loss.item(), {name: p.grad.double() for name, p in model.named_parameters()}


def check(model, path, rename):
    t = tensors(path)
    exact = t["loss"].dtype == torch.float64
    model = model.double()
    own = dict(model.named_parameters())
    names = [name[6:] for name in t if name.startswith("param/")]
    if sorted(map(rename, names)) != sorted(own):
        sys.exit(f"other parameters: {sorted(set(map(rename, names)) ^ set(own))}")
    with torch.no_grad():
        for name in names:
            own[rename(name)].copy_(t["param/" + name].view_as(own[rename(name)]))
    loss, gradients = derive(model, t)
    largest = max(gradients[rename(name)].abs().max() for name in names)

    def off(name, other):
        want = gradients[rename(name)]
        # What is 0 but for rounding (a bias of keys under softmax) is held to the largest gradient of all.
        return ((other.view_as(want) - want).abs().max() / max(want.abs().max(), 1e-3 * largest)).item()

    errors = {name: off(name, t["grad/" + name]) for name in names}
    worst = max(errors, key=errors.get)
    of_loss = abs(loss - t["loss"].item()) / abs(loss)
    print(f"polyd in {'f64' if exact else 'f32'}: {len(names)} gradients, loss {loss:.6f} (off by {of_loss:.1e}); at most {errors[worst]:.1e} off: {worst}")
    if not exact:
        _, own32 = derive(model.float(), t)
        rounded = {name: off(name, own32[rename(name)]) for name in names}
        print(f"the peer in f32: at most {max(rounded.values()):.1e} off, {rounded[worst]:.1e} there")
    if exact and not max(errors[worst], of_loss) <= 1e-7:  # constants of f32: the pixels, XCiT's positions
        sys.exit(1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", choices=["swin_t", "xcit_s12"], default="swin_t")
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--check", metavar="FILE", help="compare with a file of step_bench --dump instead of measuring")
    a = p.parse_args()
    torch.manual_seed(0)
    torch.set_flush_denormal(True)
    peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    before = peak()
    model = XCiT() if a.model == "xcit_s12" else torchvision.models.SwinTransformer(
        patch_size=[4, 4], embed_dim=96, depths=[2, 2, 6, 2], num_heads=[3, 6, 12, 24], window_size=[7, 7], stochastic_depth_prob=0.0)
    if a.check:
        check(model, a.check, swin_name if a.model == "swin_t" else lambda name: name)
        return
    x, y = torch.randn(a.batch, 3, 224, 224), torch.randint(0, 1000, (a.batch,))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1)
    times = []
    for i in range(a.steps + 1):
        t, c = time.perf_counter(), time.process_time()
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if i:
            times.append((time.perf_counter() - t, time.process_time() - c))
    wall, cpu = sorted(t[0] for t in times), sorted(t[1] for t in times)
    count = sum(q.numel() for q in model.parameters())
    print(f"peer=torch-{torch.__version__} model={a.model} threads={torch.get_num_threads()} batch={a.batch} steps={a.steps} "
          f"median_s={wall[len(wall) // 2]:.4f} cpu_s={cpu[len(cpu) // 2]:.4f} peak_rss_mb={peak():.0f} "
          f"extra_mb={peak() - before - 16 * count / 2 ** 20:.0f} parameters={count}")


main()
