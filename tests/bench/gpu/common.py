"""What the GPU benchmarks share: the back end behind bench_gpu.so, interleaved timing, results."""
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
BUILD = os.environ.get("POLYD_BUILD", "build/gpu")
ERROR = 512


class Attention(ctypes.Structure):
    """struct shim_attention."""

    _fields_ = [(n, I32) for n in ("b", "n", "h", "d", "phi", "degree", "form", "causal", "backward")] + \
        [("scale", F64), ("bias", F64)] + [(n, VP) for n in ("qkv", "y", "sums", "dy", "dqkv")]


class Polyd:
    def __init__(self):
        self.lib = ctypes.CDLL(os.path.join(BUILD, "bin", "bench_gpu.so"))
        for name in ("shim_open", "shim_stream", "shim_attention", "shim_adamw", "shim_sumsq", "shim_free"):
            getattr(self.lib, name).restype = VP
        self.lib.shim_workspace.restype = I64
        self.error = ctypes.create_string_buffer(ERROR)
        os.environ.setdefault("POLYD_PLUGIN_DIR", os.path.abspath(os.path.join(BUILD, "bin")))
        self.handle = self.check(self.lib.shim_open(self.error, ERROR))
        self.stream = torch.cuda.ExternalStream(self.lib.shim_stream(VP(self.handle)))

    def check(self, answer):
        if not answer:
            raise RuntimeError(self.error.value.decode())
        return answer

    def attention(self, qkv, y, sums=None, dy=None, dqkv=None, phi="poly", degree=3, scale=1.0, bias=0.0, causal=False,
                  form="auto"):
        b, n, _, h, d = qkv.shape
        ptr = lambda t: None if t is None else t.data_ptr()
        a = Attention(b, n, h, d, PHI[phi], degree, FORM[form], causal, dqkv is not None, scale, bias, ptr(qkv), ptr(y),
                      ptr(sums), ptr(dy), ptr(dqkv))
        return self.check(self.lib.shim_attention(VP(self.handle), ctypes.byref(a), self.error, ERROR))

    def tensors(self, name, sizes, *lists):
        count = len(sizes)
        arrays = [(VP * count)(*[t.data_ptr() for t in l]) if isinstance(l, list) else VP(l.data_ptr()) for l in lists]
        return self.check(getattr(self.lib, name)(VP(self.handle), count, (I64 * count)(*sizes), *arrays, self.error, ERROR))

    def run(self, plan):
        if self.lib.shim_run(VP(plan), self.error, ERROR):
            raise RuntimeError(self.error.value.decode())

    def sync(self):
        if self.lib.shim_sync(VP(self.handle), self.error, ERROR):
            raise RuntimeError(self.error.value.decode())

    def workspace(self, plan):
        return self.lib.shim_workspace(VP(plan))

    def free(self, plan):
        self.lib.shim_free(VP(plan))


def once(stream, run, inner):
    """Milliseconds of one of `inner` runs, by events on the stream that they go to."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(stream):
        begin.record(stream)
        for _ in range(inner):
            run()
        end.record(stream)
    end.synchronize()
    return begin.elapsed_time(end) / inner


def interleave(runners, rounds=50, at_least_ms=2.0, budget_s=6.0):
    """{name: (median, p10, p90)} in ms. Runners are {name: (stream, function)}; they take turns, so that clocks and heat
    are shared. One that fails is left out, with its reason on standard error."""
    inner, times = {}, {}
    for name, (stream, run) in list(runners.items()):
        try:
            for _ in range(3):
                run()
            torch.cuda.synchronize()
            inner[name] = max(1, int(at_least_ms / max(once(stream, run, 3), 1e-3)))
            times[name] = []
        except Exception as e:  # a peer that this device or shape does not have
            torch.cuda.synchronize()
            print(f"# {name}: {type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}", file=sys.stderr)
    began = time.time()
    for i in range(rounds):
        for name in times:
            times[name].append(once(*runners[name], inner[name]))
        if i >= 9 and time.time() - began > budget_s:
            break
    answer = {}
    for name, t in times.items():
        t.sort()
        answer[name] = (statistics.median(t), t[len(t) // 10], t[len(t) * 9 // 10])
    return answer


def peaks():
    """(TFLOP/s of a bf16 product of 8192, TB/s of a copy, read and written)."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    x = torch.empty(1 << 30, device="cuda", dtype=torch.float32)
    y = torch.empty_like(x)
    s = torch.cuda.current_stream()
    t = interleave({"mm": (s, lambda: torch.mm(a, b)), "copy": (s, lambda: y.copy_(x))}, rounds=15)
    return 2 * 8192 ** 3 / t["mm"][0] / 1e9, 2 * x.numel() * 4 / t["copy"][0] / 1e9


def device_facts():
    q = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,clocks.mem,power.draw,temperature.gpu",
                        "--format=csv,noheader"], capture_output=True, text=True).stdout.strip().splitlines()
    return {"gpu": q[0] if q else torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(), "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}


class Results:
    """JSON lines in a file; the table is printed at the end, so that it is what a cut-off output still shows."""

    def __init__(self, path):
        self.file = open(path, "a") if path else None
        self.rows = []

    def add(self, **row):
        self.rows.append(row)
        if self.file:
            self.file.write(json.dumps(row) + "\n")
            self.file.flush()
        print("  ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()), flush=True)
