"""What the GPU benchmarks share: the back end behind bench_gpu.so, timing by turns, results.

--dry, which every program here takes, runs the same lines at tiny sizes on the CPU and on whatever plug-in
POLYD_CUDA_PLUGIN names: it proves the programs, and its figures mean nothing.
"""
import argparse
import atexit
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time

import torch

VP, I32, I64, F64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_double
PHI = {"softmax": 0, "poly": 1, "sigmoid": 2, "relu": 3}
FORM = {"auto": 0, "quadratic": 1, "linear": 2}
PASS = {"fwd": 0, "bwd": 1, "jvp": 2, "bwd2": 3}
DTYPE = {torch.float32: 0, torch.bfloat16: 2}
BUILD = os.environ.get("POLYD_BUILD", "build/gpu")
ERROR = 512
ROUNDS = 50  # at least: kernels/PERFORMANCE.md 1
LEFT_OUT = 75  # exit status: something was left out for lack of time (tests/gpu/run --continue measures again)

dry = False
device = "cuda"


def arguments(parser):
    """Adds what all have, parses, and says whether this is a trial."""
    global dry, device
    parser.add_argument("--out", help="file that results are appended to, one JSON object a line")
    parser.add_argument("--seconds", type=float, default=1e9, help="no new measurement is begun after so many")
    parser.add_argument("--dry", action="store_true", help="tiny sizes on the CPU: tries the program, measures nothing")
    o = parser.parse_args()
    dry, device = o.dry, "cpu" if o.dry else "cuda"
    if not dry and not torch.cuda.is_available():
        sys.exit("this PyTorch sees no GPU (--dry tries the program without one)")
    torch.manual_seed(0)
    o.until = time.monotonic() + o.seconds
    return o


def log(*what):
    print("#", *what, flush=True)


def reason(e):
    return f"{type(e).__name__}: {(str(e).strip().splitlines() or [''])[0][:300]}"


class Attention(ctypes.Structure):
    """struct shim_attention."""

    _fields_ = [(n, I32) for n in ("b", "n", "h", "d", "phi", "degree", "form", "causal", "pass_", "dtype")] + \
        [("scale", F64), ("bias", F64)] + [(n, VP) for n in ("qkv", "y", "sums", "dy", "dqkv", "tangent", "ddy")]


class Polyd:
    def __init__(self):
        self.lib = ctypes.CDLL(os.path.join(BUILD, "bin", "bench_gpu.so"))
        for name in ("shim_open", "shim_close", "shim_stream", "shim_alloc", "shim_attention", "shim_formula", "shim_adamw", "shim_sumsq",
                     "shim_free"):
            getattr(self.lib, name).restype = VP
        self.lib.shim_workspace.restype = I64
        self.error = ctypes.create_string_buffer(ERROR)
        os.environ.setdefault("POLYD_PLUGIN_DIR", os.path.abspath(os.path.join(BUILD, "bin")))
        self.handle = self.check(self.lib.shim_open(self.error, I64(ERROR)))
        self.stream = None if dry else torch.cuda.ExternalStream(self.lib.shim_stream(VP(self.handle)))

    def check(self, answer):
        if not answer:
            raise RuntimeError(self.error.value.decode())
        return answer

    def ok(self, answer):
        if answer:
            raise RuntimeError(self.error.value.decode())

    def empty(self, shape, dtype=torch.bfloat16):
        """Memory that both sides may use: the device's, which in a trial is that of the back end under test."""
        if not dry:
            return torch.empty(shape, device=device, dtype=dtype)
        count = 1
        for s in shape:
            count *= s
        size = count * torch.empty(0, dtype=dtype).element_size()
        at = self.check(self.lib.shim_alloc(VP(self.handle), I64(size)))
        return torch.frombuffer((ctypes.c_char * size).from_address(at), dtype=dtype).view(shape)

    def randn(self, shape, dtype=torch.bfloat16, scale=1.0):
        t = self.empty(shape, dtype)
        with torch.no_grad():
            t.normal_() if not dry else t.copy_(torch.randn(shape))
            return t.mul_(scale) if scale != 1.0 else t

    def zeros(self, shape, dtype=torch.float32):
        return self.empty(shape, dtype).zero_()

    def attention(self, qkv, pass_="fwd", y=None, sums=None, dy=None, dqkv=None, tangent=None, ddy=None, phi="poly",
                  degree=3, scale=1.0, bias=0.0, causal=False, form="auto", formula=None):
        b, n, _, h, d = qkv.shape
        ptr = lambda t: None if t is None else t.data_ptr()
        a = Attention(b, n, h, d, PHI[phi], degree, FORM[form], causal, PASS[pass_], DTYPE[qkv.dtype], scale, bias,
                      ptr(qkv), ptr(y), ptr(sums), ptr(dy), ptr(dqkv), ptr(tangent), ptr(ddy))
        if formula:
            return self.check(self.lib.shim_formula(VP(self.handle), ctypes.byref(a), formula.encode(), self.error, I64(ERROR)))
        return self.check(self.lib.shim_attention(VP(self.handle), ctypes.byref(a), self.error, I64(ERROR)))

    def tensors(self, name, sizes, *lists):
        """A list is one pointer a tensor, a tensor one pointer, None none."""
        count = len(sizes)
        arrays = [VP(None) if l is None else (VP * count)(*[t.data_ptr() for t in l]) if isinstance(l, list)
                  else VP(l.data_ptr()) for l in lists]
        return self.check(getattr(self.lib, name)(VP(self.handle), count, (I64 * count)(*sizes), *arrays, self.error,
                                                  I64(ERROR)))

    def tf32(self, on):
        self.ok(self.lib.shim_tf32(VP(self.handle), int(on), self.error, I64(ERROR)))

    def run(self, plan):
        self.ok(self.lib.shim_run(VP(plan), self.error, I64(ERROR)))

    def sync(self):
        self.ok(self.lib.shim_sync(VP(self.handle), self.error, I64(ERROR)))

    def workspace(self, plan):
        return self.lib.shim_workspace(VP(plan))

    def free(self, plan):
        self.lib.shim_free(VP(plan))


def sync():
    if not dry:
        torch.cuda.synchronize()


def here():
    return None if dry else torch.cuda.current_stream()


def once(stream, run, inner):
    """Milliseconds of one of `inner` runs, by events on the stream that they go to."""
    if dry:
        t = time.perf_counter()
        for _ in range(inner):
            run()
        return 1e3 * (time.perf_counter() - t) / inner
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(stream):
        begin.record(stream)
        for _ in range(inner):
            run()
        end.record(stream)
    end.synchronize()
    return begin.elapsed_time(end) / inner


def spread(times):
    """(median, p10, p90, count)"""
    t = sorted(times)
    return statistics.median(t), t[len(t) // 10], t[len(t) * 9 // 10], len(t)


def interleave(runners, rounds=ROUNDS, at_least_ms=1.0, budget_s=10.0, failed=None):
    """{name: (median, p10, p90, rounds)} in ms. Runners are {name: (stream, function)}; they take turns, so that
    clocks and heat are shared. One that fails is left out; `failed` (a dict) then has its reason. When budget_s is
    over after ten rounds it ends with what it has."""
    inner, times = {}, {}
    for name, (stream, run) in runners.items():
        try:
            for _ in range(1 if dry else 3):
                run()
            sync()
            inner[name] = 1 if dry else max(1, min(200, int(at_least_ms / max(once(stream, run, 3), 1e-3))))
            times[name] = []
        except Exception as e:  # a peer that this device or shape does not have
            log(f"{name}: {reason(e)}")
            if failed is not None:
                failed[name] = reason(e)
    began = time.monotonic()
    for i in range(2 if dry else rounds):
        for name in times:
            times[name].append(once(*runners[name], inner[name]))
        if i >= 9 and time.monotonic() - began > budget_s:
            break
    return {name: spread(t) for name, t in times.items()}


def peaks(polyd=None):
    """(TFLOP/s of a bf16 product of 8192, TB/s of a copy, read and written)."""
    n, count = (64, 4096) if dry else (8192, 1 << 29)
    a, b = (torch.randn(n, n, device=device).to(torch.bfloat16) for _ in range(2))
    x = torch.randn(count, device=device)
    y = torch.empty_like(x)
    t = interleave({"mm": (here(), lambda: torch.mm(a, b)), "copy": (here(), lambda: y.copy_(x))}, rounds=30)
    return 2 * n ** 3 / t["mm"][0] / 1e9, 2 * count * 4 / t["copy"][0] / 1e9


def clocks():
    try:
        q = subprocess.run(["nvidia-smi", "--query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu", "--format=csv,noheader"],
                           capture_output=True, text=True, timeout=20).stdout.strip().splitlines()
        return q[0] if q else ""
    except (OSError, subprocess.TimeoutExpired):
        return ""


def facts():
    """What every figure is to be read with."""
    try:
        q = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True,
                           text=True, timeout=20).stdout.strip().splitlines()
    except (OSError, subprocess.TimeoutExpired):
        q = []
    gpu, driver = (q[0].split(", ") + [""])[:2] if q else ("", "")
    return {"gpu": gpu, "driver": driver, "clocks": clocks(), "torch": torch.__version__, "cuda": str(torch.version.cuda),
            "cudnn": str(torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else ""),
            "command": " ".join([os.path.relpath(sys.argv[0])] + sys.argv[1:])}


class Results:
    """JSON lines in a file, flushed one by one: what a cut-off run has measured is there."""

    def __init__(self, path):
        self.file = open(path, "a") if path else None
        self.bad = self.left = False
        self.common = {"date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()), **({"dry": True} if dry else {})}

    def add(self, **row):
        if self.file:
            self.file.write(json.dumps({**row, **self.common}) + "\n")
            self.file.flush()
        print("  ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()), flush=True)

    def failed(self, what, why, ours=True):
        """A peer may be missing here; what is ours may not."""
        log(f"FAILED: {what}: {why}")
        self.bad |= ours
        self.add(kind="failed", what=what, why=why)

    def wrong(self, **row):
        self.bad = True
        self.add(kind="wrong", **row)

    def left_out(self, what):
        log(f"left out: {what}: no time")
        self.left = True
        self.add(kind="left-out", what=what)

    def end(self):
        """Ends the program: 1 if something of ours failed or was wrong, LEFT_OUT if something was left out."""
        sys.exit(1 if self.bad else LEFT_OUT if self.left else 0)

    def device(self):
        """Peaks and clocks, as the first row; returns (TFLOP/s, TB/s)."""
        p = peaks()
        self.add(kind="device", matmul_tflops=p[0], copy_tbs=p[1], **facts())
        return p


class Turns:
    """One of our programs that runs steps when told to (--turns), so that a peer here takes turns with it."""

    def __init__(self, *command):
        self.command = [os.path.join(BUILD, "bin", command[0]), *command[1:]]
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        atexit.register(self.kill)
        self.times = []
        self.expect("ready")

    def line(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{' '.join(self.command)} ended with status {self.process.wait()}")
        return line.strip()

    def expect(self, what):
        line = self.line()
        if line != what:
            raise RuntimeError(f"{self.command[0]}: '{line}' instead of '{what}'")

    def run(self, count):
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        t = [float(x) for x in self.line().split()]
        self.times += t
        return t

    def finish(self):
        """The last line as a dict; numbers are numbers. Turns that were not waited for come before it."""
        self.process.stdin.close()
        answer = {}
        line = self.line()
        while "=" not in line:
            line = self.line()
        for part in line.split('name="')[0].split():
            k, v = part.split("=", 1)
            try:
                answer[k] = float(v)
            except ValueError:
                answer[k] = v
        self.process.wait()
        return answer

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
