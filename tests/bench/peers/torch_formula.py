"""The honest peer of attention by formulas: each formula of the gallery as one writes it in eager PyTorch, forward and
backward, taking turns with formula_bench in one run.

    LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu/openblas-openmp OPENBLAS_CORETYPE=SKYLAKEX OMP_NUM_THREADS=1 \\
        /usr/bin/python3 tests/bench/peers/torch_formula.py build/test/bin/formula_bench [--pairs 3] [--shape 1x1024] [--pattern TEXT]

Prints CPU seconds of the process with one thread (wall with more), least of the pairs, and memory beyond the inputs:
the growth of PyTorch's resident size, in a process of its own for each formula, against the tensors and scratch of
polyd. Before a formula is timed, the norms of Y and of the gradient of qkv and the sums of the scalars' gradients must
agree to 1e-3. The exit status is 1 if one does not, or if a formula takes more than its bar.
"""
import argparse
import math
import os
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as F

HEADS, WIDTH = 3, 64
START = [0.4, 0.3, 1.7, 0.9, 1.5]  # formula_bench's scalars, in the order of their names


def rowsum(x):
    return x.sum(-1, keepdim=True)


class Places:
    """What does not depend on the logits, made once."""

    def __init__(self, n):
        i = torch.arange(n, dtype=torch.float32)
        self.n, self.hidden = n, torch.ones(n, n, dtype=torch.bool).triu(1)
        self.by_position = (1 + 0.1 * torch.log(1 + torch.floor(i / 8192)))[:, None]
        self.distance, self.past = i[:, None] - i, (i[:, None] - i).clamp(min=0)
        self.alibi = (2 ** (-8 * (torch.arange(HEADS, dtype=torch.float32) + 1) / HEADS))[:, None, None] * self.distance


def taylor(s):
    t = 1 + s + s * s / 2
    return t / rowsum(t)


def over_sum(t, more=None):
    return t / rowsum(t) if more is None else t / (rowsum(t) + more)


def softpick(s):
    e = torch.expm1(s)
    return F.relu(e) / (1e-8 + rowsum(e.abs()))


def retention(t):
    return t / rowsum(t).abs().clamp(min=1)


def rectified_power(r, power, b):
    r = r ** power
    return r / (1e-8 + rowsum(r)) ** b


# text: learned scalars, causal (where a formula has no value for keys after the query), A of logits, places, scalars.
FORMULAS = {
    "exp(s)/rowsum(exp(s))": ("", False, lambda s, x: s.softmax(-1)),
    "s^3/sqrt(n)": ("", False, lambda s, x: s ** 3 / math.sqrt(x.n)),
    "a*s^3": ("a", False, lambda s, x, a: a * s ** 3),
    "sigmoid(s - log(n))": ("", False, lambda s, x: torch.sigmoid(s - math.log(x.n))),
    "sigmoid(s)*n^(-0.5)": ("", False, lambda s, x: torch.sigmoid(s) * x.n ** -0.5),
    "relu(s)/n": ("", False, lambda s, x: F.relu(s) / x.n),
    "relu(s)^2/n": ("", False, lambda s, x: F.relu(s).square() / x.n),
    "s^3/(1+abs(s))": ("", False, lambda s, x: s ** 3 / (1 + s.abs())),
    "softplus(s)/n": ("", False, lambda s, x: F.softplus(s) / x.n),
    "t = 1+s+s^2/2; t/rowsum(t)": ("", False, lambda s, x: taylor(s)),
    "t = sin(s+pi/4)^2; t/rowsum(t)": ("", False, lambda s, x: over_sum(torch.sin(s + math.pi / 4).square())),
    "softmax(c*tanh(s/c))": ("c", False, lambda s, x, c: (c * torch.tanh(s / c)).softmax(-1)),
    "softmax(a*log(ni)*s)": ("a", False, lambda s, x, a: (a * math.log(x.n) * s).softmax(-1)),
    "softmax(s*(1+0.1*log(1+floor(i/8192))))": ("", False, lambda s, x: (s * x.by_position).softmax(-1)),
    "softmax(s - 2^(-8*(h+1)/H)*(i-j))": ("", False, lambda s, x: (s - x.alibi).softmax(-1)),
    "softmax(s - a*log(1+b*(i-j)))": ("ab", True, lambda s, x, a, b:
                                      (s - a * torch.log1p(b * x.past)).masked_fill(x.hidden, -math.inf).softmax(-1)),
    "exp(s)/(1+rowsum(exp(s)))": ("", False, lambda s, x: over_sum(s.exp(), 1)),
    "exp(s)/(exp(b)+rowsum(exp(s)))": ("b", False, lambda s, x, b: over_sum(s.exp(), b.exp())),
    "relu(exp(s)-1)/(1e-8+rowsum(abs(exp(s)-1)))": ("", False, lambda s, x: softpick(s)),
    "s^4/(1+rowsum(s^4))": ("", False, lambda s, x: over_sum(s ** 4, 1)),
    "t = s*g^(i-j); t/max(abs(rowsum(t)),1)": ("g", True, lambda s, x, g: retention((s * g ** x.past).masked_fill(x.hidden, 0))),
    "relu(s)^t/(1e-8+rowsum(relu(s)^t))^b": ("bt", False, lambda s, x, b, t: rectified_power(F.relu(s), t, b)),
    "s/sqrt(rowsum(s^2))": ("", False, lambda s, x: s / rowsum(s * s).sqrt()),
    "s^2/rowsum(s^2)": ("", False, lambda s, x: over_sum(s * s)),
    "relu(softmax(s) + a/ni)": ("a", False, lambda s, x, a: F.relu(s.softmax(-1) + a / x.n)),
}


def bar(text):
    return 0.5 if text == "s^3/(1+abs(s))" else 0.6 if text in ("s^3/sqrt(n)", "a*s^3") else 0.7


class Peer:
    def __init__(self, text, qkv, dy, places):
        names, _, self.of = FORMULAS[text]
        self.qkv, self.dy, self.places = qkv, dy, places
        self.scalars = [torch.full((HEADS, 1, 1), START[k], requires_grad=True) for k in range(len(names))]

    def run(self):
        for t in (self.qkv, *self.scalars):
            t.grad = None
        q, k, v = (t.transpose(1, 2) for t in self.qkv.unbind(2))
        a = self.of((q * WIDTH ** -0.5) @ k.transpose(-1, -2), self.places, *self.scalars)
        y = (a @ v).transpose(1, 2)
        y.backward(self.dy)
        return y.detach()

    def check(self, ours):
        y = self.run()
        theirs = [y.norm().item(), self.qkv.grad.norm().item(), *(s.grad.sum().item() for s in self.scalars)]
        # A scalar's gradient is a sum that may cancel: it is held to the largest of them.
        size = [max(1e-3, abs(b)) for b in theirs[:2]] + [max(map(abs, theirs[2:]), default=0)] * (len(theirs) - 2)
        return len(theirs) == len(ours) and all(abs(a - b) <= 1e-3 * c for a, b, c in zip(ours, theirs, size)), theirs

    def memory(self):
        """Growth of the resident size, in a child."""
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            of = lambda key: next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key)) * 1024
            before = of("VmRSS")
            with open("/proc/self/clear_refs", "w") as f:
                f.write("5")
            self.run()
            os.write(write, str(of("VmHWM") - before).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as f:
            grown = f.read()
        os.waitpid(child, 0)
        return int(grown)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("program", help="formula_bench")
    p.add_argument("--pattern", default="", help="formulas that hold this text alone")
    p.add_argument("--pairs", type=int, default=3)
    p.add_argument("--shape", default="1x1024", help="batch x tokens")
    a = p.parse_args()
    b, n = map(int, a.shape.split("x"))
    threads = torch.get_num_threads()
    torch.manual_seed(0)
    torch.set_flush_denormal(True)
    clock = time.process_time if threads == 1 else time.perf_counter
    qkv, dy, places = torch.randn(b, n, 3, HEADS, WIDTH), torch.randn(b, n, HEADS, WIDTH), Places(n)
    ours = subprocess.Popen([a.program, "--turns", str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def say(line):
        ours.stdin.write(line + "\n")
        ours.stdin.flush()
        return ours.stdout.readline()

    bad = []
    with tempfile.NamedTemporaryFile() as f:
        f.write(qkv.numpy().tobytes() + dy.numpy().tobytes())
        f.flush()
        if "ready\n" not in iter(ours.stdout.readline, ""):  # after a line about the processor
            sys.exit("formula_bench did not start")
        print(f"torch-{torch.__version__} threads={threads} batch={b} tokens={n} pairs={a.pairs}\n"
              f"{'':46} {'polyd':>9} {'torch':>9} ratio  bar {'polyd':>8} {'torch':>8} ratio")
        # Memory first: a child of a process that has run holds freed memory already.
        qkv.requires_grad_(True)
        texts = [text for text in FORMULAS if a.pattern in text]
        grown = {text: Peer(text, qkv, dy, places).memory() for text in texts}
        for causal in (False, True):
            say(f"shape {b} {n} {int(causal)} {f.name}")
            for text in (t for t in texts if FORMULAS[t][1] == causal):
                peer = Peer(text, qkv, dy, places)
                size, *numbers = map(float, say("formula " + text).split())
                same, theirs = peer.check(numbers)
                own, others = [], []
                for _ in range(a.pairs):
                    own.append(float(say("run")))
                    t = clock()
                    peer.run()
                    others.append(clock() - t)
                ratio = min(own) / min(others)
                print(f"{text:46} {1e3 * min(own):6.1f} ms {1e3 * min(others):6.1f} ms {ratio:5.2f} {bar(text):4.1f} "
                      f"{size / 2 ** 20:5.1f} MB {grown[text] / 2 ** 20:5.1f} MB {size / grown[text]:5.3f}"
                      + ("" if same else f"  other numbers: {numbers}, {theirs}") + (" causal" if causal else ""), flush=True)
                if not same or ratio > bar(text) or (n >= 1024 and size > 0.1 * grown[text]):
                    bad.append(text)
    ours.stdin.close()
    ours.wait()
    print(f"above a bar or different: {bad}" if bad else "all within their bars")
    sys.exit(1 if bad else 0)


main()
