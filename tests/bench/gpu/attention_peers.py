"""PyTorch's softmax attention, one back end at a time."""
import contextlib

import torch
import torch.nn.functional as F

import common
from common import here, interleave, log


def backends():
    from torch.nn.attention import SDPBackend
    return {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}


def only(name):
    """A context in which no other back end runs; None: whatever PyTorch takes by itself."""
    if name is None:
        return contextlib.nullcontext()
    from torch.nn.attention import sdpa_kernel
    return sdpa_kernel(backends()[name])


def sdpa(name, q, k, v, causal):
    with only(name):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def fastest(b, h, n, d, causal):
    """The back end whose forward and backward take least at this shape."""
    q, k, v = (torch.randn(b, h, n, d, device=common.device).to(torch.bfloat16).requires_grad_() for _ in range(3))
    dy = torch.randn_like(q)

    def both(name):
        torch.autograd.grad(sdpa(name, q, k, v, causal), (q, k, v), dy)

    runners = {name: (here(), lambda name=name: both(name)) for name in ("cudnn", "flash", "efficient")}
    times = interleave(runners, rounds=10)
    log("sdpa, forward and backward:", ", ".join(f"{name} {t[0]:.3f} ms" for name, t in times.items()))
    return min(times, key=lambda name: times[name][0]) if times else None
