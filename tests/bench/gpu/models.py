"""The peers' networks: what step_bench and decode_bench run, in PyTorch."""
import torch
import torch.nn as nn
import torch.nn.functional as F

import common

# width, depth, heads, image, patch, classes; batch and parts of one step
VISION = {"vit_b16": (768, 12, 12, 224, 16, 1000), "vit_s16": (384, 12, 6, 224, 16, 1000),
          "deit_ti": (192, 12, 3, 224, 16, 1000), "tiny": (64, 4, 2, 28, 7, 10)}
GPT2 = dict(width=768, depth=12, heads=12, vocab=50304, context=1024)
STEP = {"gpt2": (32, 16), "vit_b16": (256, 4), "vit_s16": (256, 4), "deit_ti": (1024, 1), "tiny": (64, 1),
        "swin_t": (128, 8), "xcit_s12": (128, 8)}


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
    def __init__(self, width, depth, heads, image, patch, classes, phi):
        super().__init__()
        n = (image // patch) ** 2 + 1
        self.patch = nn.Conv2d(3, width, patch, patch)
        self.cls, self.pos = nn.Parameter(torch.zeros(1, 1, width)), nn.Parameter(torch.zeros(1, n, width))
        self.blocks = nn.Sequential(*[Block(width, heads, phi, False, n) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.pos
        return self.head(self.norm(self.blocks(x))[:, 0])


class GPT(nn.Module):
    def __init__(self, width, depth, heads, vocab, context, phi):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, heads, phi, True, context) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.blocks(x)))


class WithLoss(nn.Module):
    """The loss belongs to what is compiled: its passes over the logits are then few."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, y):
        out = self.net(x)
        return F.cross_entropy(out.view(-1, out.shape[-1]).float(), y)


def build(name, phi, batch):
    """(model with its loss, input, target) on the device; a trial has a model of one thin block."""
    if name == "gpt2":
        sizes = dict(width=32, depth=1, heads=2, vocab=64, context=16) if common.dry else GPT2
        model, shape = GPT(**sizes, phi=phi), (batch, sizes["context"])
        x = torch.randint(0, sizes["vocab"], shape, device=common.device)
        y = torch.randint(0, sizes["vocab"], (shape[0] * shape[1],), device=common.device)
    else:
        sizes = (32, 1, 2, 28, 14, 10) if common.dry else VISION[name]
        model = ViT(*sizes, phi=phi)
        x = torch.randn(batch, 3, sizes[3], sizes[3], device=common.device)
        y = torch.randint(0, sizes[5], (batch,), device=common.device)
    model = WithLoss(model).to(common.device)
    for m in model.modules():
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.02)
    return model, x, y


class Decoder:
    """GPT-2 decoding one token of each sequence at place `at`, with a cache of keys and values, recorded as a CUDA
    graph: nothing but kernels is left of PyTorch."""

    def __init__(self, batch, at):
        width, depth, heads, vocab = (32, 1, 2, 64) if common.dry else (768, 12, 12, 50257)
        make = lambda *shape: torch.randn(*shape, device=common.device).mul_(0.02).to(torch.bfloat16)
        d = width // heads
        self.ids = torch.zeros(batch, dtype=torch.long, device=common.device)
        self.wte, self.wpe, self.at, self.heads = make(vocab, width), make(at, width), at, heads
        self.blocks = [{"n": make(4, width), "qkv": make(3 * width, width), "bqkv": make(3 * width), "proj": make(width, width),
                        "bproj": make(width), "fc1": make(4 * width, width), "b1": make(4 * width), "fc2": make(width, 4 * width),
                        "b2": make(width), "k": make(batch, heads, at, d), "v": make(batch, heads, at, d)} for _ in range(depth)]
        self.norm = make(2, width)

    def step(self):
        with torch.no_grad():
            x = self.wte[self.ids] + self.wpe[self.at - 1]
            b, w = x.shape
            for l in self.blocks:
                h = F.layer_norm(x, (w,), l["n"][0], l["n"][1], 1e-5)
                q, k, v = F.linear(h, l["qkv"], l["bqkv"]).view(b, 3, self.heads, w // self.heads).unbind(1)
                l["k"][:, :, self.at - 1] = k
                l["v"][:, :, self.at - 1] = v
                y = F.scaled_dot_product_attention(q.unsqueeze(2), l["k"], l["v"])
                x = x + F.linear(y.reshape(b, w), l["proj"], l["bproj"])
                h = F.layer_norm(x, (w,), l["n"][2], l["n"][3], 1e-5)
                x = x + F.linear(F.gelu(F.linear(h, l["fc1"], l["b1"]), approximate="tanh"), l["fc2"], l["b2"])
            x = F.layer_norm(x, (w,), self.norm[0], self.norm[1], 1e-5)
            self.logits = F.linear(x, self.wte)

    def recorded(self):
        """A function that runs one step."""
        if common.dry:
            self.step()
            return self.step
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return graph.replay
