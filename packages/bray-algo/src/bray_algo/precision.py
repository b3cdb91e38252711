"""The precision of results: probabilities, losses and returns are float32 at least.

float16 ends at 65,504, where a ratio of probabilities overflows, and bfloat16 has three digits, in
which γ = 0.999 is 1. Hence what comes in half precision (or as integers) is computed and returned
in float32, and its gradient goes back in its own type. Actions keep the type of what they come
from.
"""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor


def wide(tensor: Tensor) -> Tensor:
    """Return the tensor in float32 at least; float64 stays."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def alike(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors in one type: the widest of theirs, float32 at least."""
    kinds = [tensor.dtype for tensor in tensors]
    if set(kinds) == {torch.float32}:
        return tensors
    kind = reduce(torch.promote_types, kinds, torch.float32)
    return tuple(tensor.to(kind) for tensor in tensors)


MAX_LOG_RATIO = 20.0
"""Logarithm at which a ratio of probabilities stops growing: e^20 = 4.9e8.

That is far beyond any clip, and products of two are finite in float32 (e^89 is not), so that a
weight of an unclipped V-trace times 0 is 0. There is no gradient beyond it.
"""


def probability_ratio(log_ratio: Tensor) -> Tensor:
    """Return π/μ from log π − log μ, `[…]`, at most e^20 and never infinite; float32 at least."""
    return wide(log_ratio).clamp(max=MAX_LOG_RATIO).exp()
