"""The precision in which this CPU trains convolutions quickest, by a measurement.

What a processor can says little: AVX-512 BF16 alone is twice as slow as float32 on one kind and
1.6 times as quick on another.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Literal

import torch

from bray_algo.networks.convolutional import NatureEncoder
from bray_core.process.machine import has_bf16

_ROUNDS, _FRAMES = 3, 32


@cache
def quickest_precision() -> Literal["fp32", "bf16"]:
    """Return the precision to train in where nobody says one; measured once, in some 50 ms.

    Where the CPU has no bfloat16, nothing is measured.
    """
    if not has_bf16():
        return "fp32"
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        encoder, frames = NatureEncoder(), torch.zeros((_FRAMES, 4, 84, 84), dtype=torch.uint8)
        rounds = [
            (seconds(encoder, frames, is_bf16=False), seconds(encoder, frames, is_bf16=True))
            for _ in range(_ROUNDS)
        ]
    fp32, bf16 = (min(side) for side in zip(*rounds, strict=True))
    return "bf16" if bf16 < fp32 else "fp32"


def seconds(encoder: NatureEncoder, frames: torch.Tensor, *, is_bf16: bool) -> float:
    """Return the seconds that a pass over frames takes, forward and backward.

    Args:
        encoder: the network.
        frames: `[B, C, 84, 84]`, uint8.
        is_bf16: whether its products are of bfloat16.
    """
    began = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
        features = encoder(frames)
    torch.autograd.grad(features.float().sum(), [*encoder.parameters()])
    return time.perf_counter() - began
