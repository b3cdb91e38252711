"""The Beta distribution on (0, 1), as functions of its parameters alpha and beta, both `[…, D]`.

Chou et al. 2017, "Improving stochastic policy gradients in continuous control with deep
reinforcement learning using the Beta distribution": bounded actions without the bias of clipping.
Parameters are held within 1e-3 and 1e6, with no gradient beyond. Inside, numbers are float64: the
logarithms of gamma functions differ by little and are great.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from bray_algo.precision import wide
from bray_algo.validation.tensors import check_floats, check_numbers, check_shape
from bray_algo.validation.values import check_within

_LOWEST, _HIGHEST = 1e-3, 1e6


def parameters(raw: Tensor) -> tuple[Tensor, Tensor]:
    """Turn a layer's outputs `[…, 2D]` into alpha and beta `[…, D]`, both 1 + softplus.

    From 1 on there is one mode (Chou et al. 2017, §4.2).

    Raises:
        ValueError: the last axis is not even.
    """
    check_floats("raw", raw)
    if raw.ndim < 1 or raw.shape[-1] % 2 or not raw.shape[-1]:
        raise ValueError(f"raw: expected [..., 2D], got shape {tuple(raw.shape)}")
    # Above 1 both: below, the density is infinite at the ends and a policy runs into them.
    alpha, beta = (1.0 + softplus(wide(raw))).chunk(2, -1)
    return alpha, beta


def log_prob(alpha: Tensor, beta: Tensor, action: Tensor) -> Tensor:
    """Return the log density of actions `[…, D]` in 0 to 1, summed over D.

    Actions at 0 and 1 count as the first numbers inside: the density is finite there.

    Raises:
        ValueError: shapes do not agree, as in all of this file, or an action is NaN, below 0 or
            above 1.
    """
    a, b = _held(alpha, beta)
    check_numbers("action", action)
    check_shape("action", action, alpha.shape)
    check_within(0.0, 1.0, action=action)
    action = wide(action) if not action.dtype.is_floating_point else action
    x = _inside(action, action.dtype).double()
    density = (a - 1.0) * torch.log(x) + (b - 1.0) * torch.log1p(-x) - _log_normaliser(a, b)
    return density.sum(-1).to(wide(alpha).dtype)


def entropy(alpha: Tensor, beta: Tensor) -> Tensor:
    """Return the differential entropy `[…]`, in nats."""
    a, b = _held(alpha, beta)
    each = (
        _log_normaliser(a, b)
        - (a - 1.0) * torch.digamma(a)
        - (b - 1.0) * torch.digamma(b)
        + (a + b - 2.0) * torch.digamma(a + b)
    )
    return each.sum(-1).to(wide(alpha).dtype)


def kl(alpha_p: Tensor, beta_p: Tensor, alpha_q: Tensor, beta_q: Tensor) -> Tensor:
    """Return KL(p ‖ q), `[…]`, in nats."""
    check_floats("alpha_p", alpha_p)
    check_shape("alpha_q", alpha_q, alpha_p.shape)
    (a, b), (c, d) = _held(alpha_p, beta_p), _held(alpha_q, beta_q)
    each = (
        _log_normaliser(c, d)
        - _log_normaliser(a, b)
        + (a - c) * torch.digamma(a)
        + (b - d) * torch.digamma(b)
        + (c - a + d - b) * torch.digamma(a + b)
    )
    return each.sum(-1).to(wide(alpha_p).dtype)


def sample(alpha: Tensor, beta: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw actions `[…, D]` inside 0 to 1, differentiable in both parameters."""
    a, b = _held(alpha, beta)
    drawn = torch.sigmoid(_log_gamma_sample(a, generator) - _log_gamma_sample(b, generator))
    return _inside(drawn, alpha.dtype).to(alpha.dtype)


def mode(alpha: Tensor, beta: Tensor) -> Tensor:
    """Return the most likely actions `[…, D]`: (α − 1) / (α + β − 2) where both are above 1.

    Where only one is above 1 that is an end; where neither is, both ends are likely, and the mean
    is returned.
    """
    _check(alpha, beta)
    peaked = (alpha > 1.0) & (beta > 1.0)
    peak = (alpha - 1.0) / (alpha + beta - 2.0).masked_fill(~peaked, 1.0)
    flat = alpha / (alpha + beta)
    flat = torch.where((alpha <= 1.0) & (beta > 1.0), torch.zeros_like(flat), flat)
    flat = torch.where((alpha > 1.0) & (beta <= 1.0), torch.ones_like(flat), flat)
    return torch.where(peaked, peak, flat)


def _log_normaliser(a: Tensor, b: Tensor) -> Tensor:
    return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)


def _log_gamma_sample(a: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw log g for g ~ Gamma(a, 1): g = g' U^(1/a), g' ~ Gamma(a + 1, 1); no underflow."""
    uniform = torch.rand(a.shape, generator=generator, dtype=a.dtype, device=a.device)
    log_uniform = torch.log1p(-uniform)  # of 1 − U, which is never 0
    boosted: Tensor = torch._standard_gamma(a + 1.0, generator)
    return torch.log(boosted) + log_uniform / a


def _inside(action: Tensor, dtype: torch.dtype) -> Tensor:
    return action.clamp(torch.finfo(dtype).tiny, 1.0 - torch.finfo(dtype).eps)


def _held(alpha: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    _check(alpha, beta)
    return alpha.double().clamp(_LOWEST, _HIGHEST), beta.double().clamp(_LOWEST, _HIGHEST)


def _check(alpha: Tensor, beta: Tensor) -> None:
    check_floats("alpha", alpha)
    check_floats("beta", beta)
    check_shape("beta", beta, alpha.shape)
