"""The diagonal Gaussian as functions of mean and log standard deviation `[…, D]`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def log_prob(mean: Tensor, log_std: Tensor, action: Tensor) -> Tensor:
    """Return the log density of actions `[…, D]`, summed over D."""
    z = (action - mean) * torch.exp(-log_std)
    return (-0.5 * z.square() - log_std - _HALF_LOG_2PI).sum(-1)


def entropy(mean: Tensor, log_std: Tensor) -> Tensor:
    """Return the differential entropy `[…]`, in nats."""
    return (log_std + 0.5 + _HALF_LOG_2PI).expand_as(mean).sum(-1)


def kl(mean_p: Tensor, log_std_p: Tensor, mean_q: Tensor, log_std_q: Tensor) -> Tensor:
    """Return KL(p ‖ q), `[…]`, in nats."""
    ratio = torch.exp(2 * (log_std_p - log_std_q))
    distance = ((mean_p - mean_q) * torch.exp(-log_std_q)).square()
    return (log_std_q - log_std_p + 0.5 * (ratio + distance - 1)).sum(-1)


def sample(mean: Tensor, log_std: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw actions `[…, D]`."""
    noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
    return mean + torch.exp(log_std) * noise


def mode(mean: Tensor, log_std: Tensor) -> Tensor:
    """Return the mean."""
    return mean
