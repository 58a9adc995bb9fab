"""The honest peer of the Nystromformer: PyTorch training steps of what step_bench runs as nystrom (nystrom1k, nystrom4k).

    build/test/bin/step_bench --model nystrom1k --batch 2 --precision fp64 --dump FILE
    LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu/openblas-openmp OPENBLAS_CORETYPE=SKYLAKEX OMP_NUM_THREADS=2 \\
        /usr/bin/python3 tests/bench/peers/torch_nystrom.py --check FILE

holds loss and every gradient in f64 to polyd's. With a program instead, it takes turns with it in one run and prints the
medians and their ratios:

    ... tests/bench/peers/torch_nystrom.py build/test/bin/step_bench --model nystrom --pairs 3

Attention through landmarks by softmax, six steps of the pseudo-inverse from the start of each matrix, dropout 0.1 (none
for --check), AdamW in f32. extra_mb: the peak of the process beyond what it held before the model and beyond weights,
gradients and moments.
"""
import argparse
import json
import resource
import struct
import subprocess
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

CONTEXT = {"nystrom1k": 1024, "nystrom": 2048, "nystrom4k": 4096}
WIDTH, HEADS, HIDDEN, DEPTH, VOCAB, CLASSES, KERNEL, STEPS = 64, 2, 128, 2, 32, 10, 35, 6


class Attention(nn.Module):
    def __init__(self, landmarks):
        super().__init__()
        self.landmarks = landmarks
        self.W_q, self.W_k, self.W_v, self.ff = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.attn = nn.Module()
        self.attn.conv = nn.Conv2d(HEADS, HEADS, (KERNEL, 1), padding=(KERNEL // 2, 0), groups=HEADS, bias=False)

    def inverse(self, a):
        i = torch.eye(a.shape[-1], dtype=a.dtype)
        size = a.abs()
        z = a.transpose(-1, -2) / (size.sum(-2).amax(-1) * size.sum(-1).amax(-1))[..., None, None]
        for _ in range(STEPS):
            az = a @ z
            z = 0.25 * z @ (13 * i - az @ (15 * i - az @ (7 * i - az)))
        return z

    def forward(self, x, mask):
        b, n, _ = x.shape
        d, m = WIDTH // HEADS, self.landmarks
        split = lambda y: (y * mask[..., None]).view(b, n, HEADS, d).transpose(1, 2)
        q, k, v = split(self.W_q(x)) * d ** -0.25, split(self.W_k(x)) * d ** -0.25, split(self.W_v(x))
        qm, km = (t.reshape(b, HEADS, m, n // m, d).mean(-2) for t in (q, k))
        f1 = (q @ km.transpose(-1, -2)).softmax(-1)
        f2 = (qm @ km.transpose(-1, -2)).softmax(-1)
        f3 = (qm @ k.transpose(-1, -2) - 1e9 * (1 - mask[:, None, None])).softmax(-1)
        y = (f1 @ self.inverse(f2)) @ (f3 @ v) + self.attn.conv(v)
        return self.ff(y.transpose(1, 2).reshape(b, n, WIDTH))


class Layer(nn.Module):
    def __init__(self, landmarks, dropout):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mha, self.drop = Attention(landmarks), nn.Dropout(dropout)
        self.mlpblock = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Dropout(dropout), nn.Linear(HIDDEN, WIDTH), nn.Dropout(dropout))

    def forward(self, x, mask):
        x = x + self.drop(self.mha(self.norm1(x), mask))
        return x + self.mlpblock(self.norm2(x))


class Nystromformer(nn.Module):
    def __init__(self, context, landmarks=128, dropout=0.1):
        super().__init__()
        self.model = nn.Module()
        self.model.embeddings = nn.Module()
        self.model.embeddings.word_embeddings, self.model.embeddings.position_embeddings = nn.Embedding(VOCAB, WIDTH), nn.Embedding(context, WIDTH)
        for i in range(DEPTH):
            setattr(self.model, f"transformer_{i}", Layer(landmarks, dropout))
        self.model.norm = nn.LayerNorm(WIDTH)
        self.seq_classifer = nn.Module()
        self.seq_classifer.mlpblock = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
        self.drop = nn.Dropout(dropout)

    def forward(self, ids, last):
        n, e = ids.shape[1], self.model.embeddings
        x = e.word_embeddings(ids) + e.position_embeddings.weight[:n]
        mask = ((torch.arange(n) <= last[:, None]) & (ids != 0)).to(x.dtype)
        x = self.drop(x)
        for i in range(DEPTH):
            x = getattr(self.model, f"transformer_{i}")(x, mask)
        return self.seq_classifer.mlpblock((self.model.norm(x) * mask[..., None]).mean(1))


def tensors(path):
    of = {"F64": torch.float64, "F32": torch.float32, "I32": torch.int32}
    with open(path, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        body = bytearray(f.read())
    return {name: torch.frombuffer(body[slice(*t["data_offsets"])], dtype=of[t["dtype"]]).view(t["shape"]) for name, t in head.items()
            if name != "__metadata__"}


def check(path):
    t = tensors(path)
    batch, n = t["input"].shape
    exact = t["loss"].dtype == torch.float64
    model = Nystromformer(n, dropout=0).double()
    own = dict(model.named_parameters())
    names = {name[6:] for name in t if name.startswith("param/")}
    if names != set(own):
        sys.exit(f"other parameters: {sorted(names ^ set(own))}")
    with torch.no_grad():
        for name, p in own.items():
            p.copy_(t["param/" + name].view_as(p))
    loss = F.cross_entropy(model(t["input"].long(), t["last"].long() - n * torch.arange(batch)), t["target"].long())
    loss.backward()
    largest = max(p.grad.abs().max() for p in own.values())
    # What is 0 but for rounding (a bias of keys under softmax) is held to the largest gradient of all.
    errors = {name: ((t["grad/" + name].view_as(p) - p.grad).abs().max() / max(p.grad.abs().max(), 1e-3 * largest)).item() for name, p in own.items()}
    worst = max(errors, key=errors.get)
    of_loss = abs(loss.item() - t["loss"].item()) / loss.item()
    print(f"polyd in {'f64' if exact else 'f32'}: {len(errors)} gradients, loss {loss.item():.9f} (off by {of_loss:.1e}); at most {errors[worst]:.1e} off: {worst}")
    if not max(errors[worst], of_loss) <= (1e-9 if exact else 1e-3):
        sys.exit(1)


class Peer:
    """Steps of PyTorch on tokens as step_bench has them."""

    def __init__(self, context, batch):
        self.model = Nystromformer(context)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1)
        self.ids = torch.arange(batch * context).view(batch, context) * 7919 % VOCAB
        self.last, self.y = torch.full((batch,), context * 125 // 128 - 1), torch.arange(batch) * 7919 % CLASSES

    def step(self):
        t, c = time.perf_counter(), time.process_time()
        loss = F.cross_entropy(self.model(self.ids, self.last), self.y)
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()
        return time.perf_counter() - t, time.process_time() - c


def median(x):
    return sorted(x)[len(x) // 2]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("program", nargs="?", help="step_bench, to take turns with")
    p.add_argument("--model", choices=sorted(CONTEXT), default="nystrom")
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--pairs", type=int, default=3)
    p.add_argument("--check", metavar="FILE", help="compare with a file of step_bench --dump instead of measuring")
    a = p.parse_args()
    torch.manual_seed(0)
    torch.set_flush_denormal(True)
    if a.check:
        check(a.check)
        return
    ours = subprocess.Popen([a.program, "--model", a.model, "--batch", str(a.batch), "--threads", str(torch.get_num_threads()), "--turns"],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) if a.program else None
    if ours and ours.stdout.readline() != "ready\n":
        sys.exit("step_bench did not start")
    peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    before = peak()
    peer = Peer(CONTEXT[a.model], a.batch)
    count = sum(q.numel() for q in peer.model.parameters())
    peer.step()
    own, theirs = [], []
    for _ in range(a.pairs):
        if ours:
            ours.stdin.write("1\n")
            ours.stdin.flush()
            own.append(float(ours.stdout.readline()))
        theirs.append(peer.step())
    extra = peak() - before - 16 * count / 2 ** 20
    wall, cpu = median([t[0] for t in theirs]), median([t[1] for t in theirs])
    print(f"peer=torch-{torch.__version__} model={a.model} threads={torch.get_num_threads()} batch={a.batch} steps={a.pairs} median_s={wall:.4f} "
          f"cpu_s={cpu:.4f} extra_mb={extra:.0f} parameters={count}")
    if ours:
        line = ours.communicate()[0].strip().splitlines()[-1]
        of = dict(word.split("=", 1) for word in line.split() if "=" in word)
        print(line)
        print(f"time {median(own) / wall:.3f}, CPU time {float(of['cpu_s']) / cpu:.3f}, memory {float(of['extra_mb']) / extra:.3f} of the peer's")


main()
