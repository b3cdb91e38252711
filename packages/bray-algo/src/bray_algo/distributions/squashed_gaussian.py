"""The Gaussian squashed by tanh into (−1, 1), as functions of mean and log standard deviation.

Haarnoja et al. 2018, "Soft actor-critic algorithms and applications", appendix C. Mean `[…, D]` and
`log_std` (`[…, D]` or `[D]`) are those before the squashing, held as in `gaussian`; actions are
after it. For other bounds scale: low + (high − low) (action + 1) / 2 has the density of the action
less Σ log((high − low) / 2).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from bray_algo.distributions import gaussian
from bray_algo.precision import alike, wide
from bray_algo.validation.tensors import check_floats, check_shape
from bray_algo.validation.values import check_finite

_NUM_NODES = 48
_HERMITE = tuple(map(torch.from_numpy, np.polynomial.hermite_e.hermegauss(_NUM_NODES)))
_LEGENDRE = tuple(map(torch.from_numpy, np.polynomial.legendre.leggauss(_NUM_NODES)))
_REACH = 10.0
"""Greatest node of the Legendre quadrature: beyond it softplus(−2u) is below 3e-9."""


def sample(mean: Tensor, log_std: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw actions `[…, D]`, differentiable in mean and deviation."""
    return torch.tanh(gaussian.sample(mean, log_std, generator))


def sample_with_log_prob(
    mean: Tensor, log_std: Tensor, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Draw actions `[…, D]` with their log density `[…]`.

    Exact where `log_prob(sample(…))` is not: tanh rounds to 1 from 9 on in float32.
    """
    before = gaussian.sample(mean, log_std, generator)
    return torch.tanh(before), _log_density(mean, log_std, before)


def log_prob(mean: Tensor, log_std: Tensor, action: Tensor) -> Tensor:
    """Return the log density of actions `[…, D]`, summed over D.

    Actions at or beyond ±1 count as the last number before: the density is finite there.

    Raises:
        ValueError: shapes do not agree, as in all of this file, or an action is not finite.
    """
    check_floats("mean", mean)
    check_floats("action", action)
    check_shape("action", action, mean.shape)
    check_finite(action=action)
    # atanh(±1) is infinite: the last number before stands for it.
    inside = 1.0 - torch.finfo(action.dtype).eps
    return _log_density(mean, log_std, torch.atanh(wide(action).clamp(-inside, inside)))


def entropy(mean: Tensor, log_std: Tensor) -> Tensor:
    """Return the differential entropy `[…]`, in nats, by quadrature (to about 1e-6 in float64).

    H[tanh u] = H[u] + E log(1 − tanh² u), of which there is no closed form. A narrow Gaussian
    takes Gauss-Hermite nodes; a wide one E|u| exactly, and Gauss-Legendre nodes for the rest.
    """
    mean, log_std = alike(mean, gaussian.held(mean, log_std))
    std = log_std.exp()
    narrow = std < 1.0
    slope = torch.where(
        narrow,
        _narrow_slope(mean, std.masked_fill(~narrow, 1.0)),
        _wide_slope(mean, std.masked_fill(narrow, 1.0)),
    )
    return gaussian.entropy(mean, log_std) + slope.sum(-1)


def kl(mean_p: Tensor, log_std_p: Tensor, mean_q: Tensor, log_std_q: Tensor) -> Tensor:
    """Return KL(p ‖ q), `[…]`, in nats: that of the Gaussians, as tanh is one to one."""
    return gaussian.kl(mean_p, log_std_p, mean_q, log_std_q)


def mode(mean: Tensor, log_std: Tensor) -> Tensor:
    """Return tanh of the mean: the median, and what is played without exploration.

    The density itself may be greatest elsewhere, for a wide Gaussian at both ends.
    """
    return torch.tanh(mean)


def _log_density(mean: Tensor, log_std: Tensor, before: Tensor) -> Tensor:
    return gaussian.log_prob(mean, log_std, before) - log_slope(wide(before)).sum(-1)


def log_slope(before: Tensor) -> Tensor:
    """Return log(1 − tanh² u) = 2 (log 2 − |u| − softplus(−2|u|)), finite for every finite u."""
    size = before.abs()
    return 2.0 * (math.log(2.0) - size - softplus(-2.0 * size))


def _narrow_slope(mean: Tensor, std: Tensor) -> Tensor:
    """Return E log(1 − tanh² u) for u ~ N(mean, std²), for std ≤ 1."""
    nodes, weights = (column.to(mean) for column in _HERMITE)
    values = log_slope(mean.unsqueeze(-1) + std.unsqueeze(-1) * nodes)
    return (values * weights).sum(-1) / math.sqrt(2.0 * math.pi)


def _wide_slope(mean: Tensor, std: Tensor) -> Tensor:
    """Return E log(1 − tanh² u) for std ≥ 1, where Hermite's nodes would lie too far apart."""
    nodes, weights = (column.to(mean) for column in _LEGENDRE)
    at, weights = (nodes + 1.0) * (_REACH / 2.0), weights * (_REACH / 2.0)
    centre, spread = mean.unsqueeze(-1), std.unsqueeze(-1)
    density = _normal((at - centre) / spread) + _normal((at + centre) / spread)
    rest = (softplus(-2.0 * at) * weights * density / spread).sum(-1)
    ratio = mean / std
    size = 2.0 * std * _normal(ratio) + mean * torch.erf(ratio / math.sqrt(2.0))  # E|u|
    return 2.0 * (math.log(2.0) - size - rest)


def _normal(z: Tensor) -> Tensor:
    return torch.exp(-0.5 * z.square()) / math.sqrt(2.0 * math.pi)
