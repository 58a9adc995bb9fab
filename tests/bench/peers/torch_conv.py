#!/usr/bin/env python3
"""torch_conv.py [THREADS]: the shapes of conv_bench in PyTorch (Debian: python3-torch): forward and both derivatives of
a 3 x 3 convolution of 256 channels on 56 x 56, and of a depthwise one; channels last, as PyTorch advises for
convolutions, and its own default layout. Milliseconds, the best of seven turns; with one thread of its CPU time."""
import sys
import time

import torch
import torch.nn.functional as F

threads = int(sys.argv[1]) if len(sys.argv) > 1 else 2
torch.set_num_threads(threads)
timer = time.process_time if threads == 1 else time.monotonic


def best(f):
    least = float("inf")
    for _ in range(7):
        t = timer()
        f()
        least = min(least, timer() - t)
    return least


def convolution(ci, co, side, stride, groups, layout, label):
    x = torch.randn(8, ci, side, side).to(memory_format=layout)
    w = torch.randn(co, ci // groups, 3, 3).to(memory_format=layout)
    with torch.no_grad():
        y = F.conv2d(x, w, stride=stride, padding=1, groups=groups)
        dy = torch.randn_like(y)
        forms = {
            "forward": lambda: F.conv2d(x, w, stride=stride, padding=1, groups=groups),
            "by x": lambda: torch.ops.aten.convolution_backward(dy, x, w, None, [stride] * 2, [1, 1], [1, 1], False, [0, 0], groups, [True, False, False]),
            "by w": lambda: torch.ops.aten.convolution_backward(dy, x, w, None, [stride] * 2, [1, 1], [1, 1], False, [0, 0], groups, [False, True, False]),
        }
        flop = 2.0 * y.numel() * 9 * ci / groups
        for name, f in forms.items():
            t = best(f)
            print(f"conv 3x3 {ci} -> {co} on {side}, stride {stride}, groups {groups}, {label}, {name:8} {1e3 * t:9.2f} ms {1e-9 * flop / t:7.1f} GFLOP/s")


print("torch", torch.__version__, "threads", torch.get_num_threads())
for layout, label in ((torch.channels_last, "channels last"), (torch.contiguous_format, "channels first")):
    convolution(256, 256, 56, 1, 1, layout, label)
    convolution(3, 48, 224, 2, 1, layout, label)
    convolution(48, 96, 112, 2, 1, layout, label)
    convolution(256, 256, 56, 1, 256, layout, label)
