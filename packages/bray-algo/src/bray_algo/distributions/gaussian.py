"""The diagonal Gaussian as functions of mean `[…, D]` and log standard deviation.

`log_std` is `[…, D]` or, the same everywhere, `[D]`. It is held within −20 and 20, so that
densities and divergences stay finite in float32; beyond, it has no gradient. Half precision gives
densities in float32 (`precision`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bray_algo.precision import alike, wide
from bray_algo.validation.tensors import check_floats, check_numbers, check_shape
from bray_algo.validation.values import check_finite

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_MAX_LOG_STD = 20.0


def log_prob(mean: Tensor, log_std: Tensor, action: Tensor) -> Tensor:
    """Return the log density of actions `[…, D]`, summed over D.

    Raises:
        ValueError: shapes do not agree, as in all of this file, or an action is not finite.
    """
    check_floats("mean", mean)
    check_numbers("action", action)
    check_shape("action", action, mean.shape)
    check_finite(action=action)
    mean, action, log_std = alike(mean, action, held(mean, log_std))
    z = (action - mean) * torch.exp(-log_std)
    return (-0.5 * z.square() - log_std - _HALF_LOG_2PI).sum(-1)


def entropy(mean: Tensor, log_std: Tensor) -> Tensor:
    """Return the differential entropy `[…]`, in nats."""
    return (wide(held(mean, log_std)) + 0.5 + _HALF_LOG_2PI).sum(-1)


def kl(mean_p: Tensor, log_std_p: Tensor, mean_q: Tensor, log_std_q: Tensor) -> Tensor:
    """Return KL(p ‖ q), `[…]`, in nats."""
    check_floats("mean_p", mean_p)
    check_shape("mean_q", mean_q, mean_p.shape)
    log_std_p, log_std_q = held(mean_p, log_std_p), held(mean_q, log_std_q)
    mean_p, log_std_p, mean_q, log_std_q = alike(mean_p, log_std_p, mean_q, log_std_q)
    ratio = torch.exp(2 * (log_std_p - log_std_q))
    distance = ((mean_p - mean_q) * torch.exp(-log_std_q)).square()
    return (log_std_q - log_std_p + 0.5 * (ratio + distance - 1)).sum(-1)


def sample(mean: Tensor, log_std: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw actions `[…, D]`."""
    check_floats("mean", mean)
    noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
    return mean + torch.exp(held(mean, log_std)) * noise


def mode(mean: Tensor, log_std: Tensor) -> Tensor:
    """Return the mean."""
    return mean


def held(mean: Tensor, log_std: Tensor) -> Tensor:
    """Return a log standard deviation within its bounds, in the mean's shape.

    Raises:
        ValueError: it is neither of the mean's shape nor of its last axis'.
    """
    check_floats("mean", mean)
    check_floats("log_std", log_std)
    if log_std.shape not in (mean.shape, mean.shape[-1:]):
        raise ValueError(
            f"log_std: expected shape {tuple(mean.shape)} or {tuple(mean.shape[-1:])}, "
            f"got {tuple(log_std.shape)}"
        )
    return log_std.clamp(-_MAX_LOG_STD, _MAX_LOG_STD).expand_as(mean)
