"""Maths of bounded reals in numpy: what tanh squashes, and Beta distributions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from bray_core.nested import Nested

BETA_OUTPUTS = ("alpha", "beta", "low", "high")
"""Outputs of a policy whose reals have Beta distributions."""
_BETA_HELD = (1e-3, 1e6)
"""Bounds of alpha and beta: those of `bray_algo.distributions.beta`."""

_Numbers = npt.NDArray[Any]


def tanh_squash(unbounded: _Numbers, low: _Numbers, high: _Numbers) -> _Numbers:
    """Return low + (high − low) (tanh(u) + 1) / 2, float32, never outside the bounds.

    Haarnoja et al. 2018, "Soft actor-critic algorithms and applications", appendix C.
    """
    action = low + (high - low) * 0.5 * (np.tanh(unbounded) + 1.0)
    return np.clip(action, low, high).astype(np.float32)


def tanh_log_slope(unbounded: _Numbers, low: _Numbers, high: _Numbers) -> _Numbers:
    """Return log |d squash / du|, by which squashing lowers a log density; no overflow at far u."""
    # log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u))
    slope = 2.0 * (math.log(2.0) - unbounded - np.logaddexp(0.0, -2.0 * unbounded))
    return slope + np.log((high - low) * 0.5)


def held_beta(outputs: Nested) -> list[_Numbers]:
    """Return `BETA_OUTPUTS` in float64, alpha and beta held within their bounds."""
    alpha, beta, low, high = (np.asarray(outputs[name], np.float64) for name in BETA_OUTPUTS)
    return [alpha.clip(*_BETA_HELD), beta.clip(*_BETA_HELD), low, high]


def between(unit: _Numbers, low: _Numbers, high: _Numbers) -> _Numbers:
    """Return low + (high − low) x, float32, never outside the bounds."""
    action: _Numbers = np.clip(low + (high - low) * unit, low, high).astype(np.float32)
    return action


def beta_log_density(
    action: _Numbers, alpha: _Numbers, beta: _Numbers, low: _Numbers, high: _Numbers
) -> _Numbers:
    """Return the log density of each number of float32 actions between the bounds.

    An action at a bound counts as the first number inside, as in `bray_algo.distributions.beta`.
    """
    inside = np.finfo(np.float32)
    unit = np.clip((action - low) / (high - low), inside.tiny, 1.0 - inside.eps)
    normaliser = _log_gamma(alpha) + _log_gamma(beta) - _log_gamma(alpha + beta)
    density = (alpha - 1.0) * np.log(unit) + (beta - 1.0) * np.log1p(-unit) - normaliser
    log_density: _Numbers = density - np.log(high - low)
    return log_density


def beta_mode(alpha: _Numbers, beta: _Numbers) -> _Numbers:
    """Return the most likely numbers: where neither parameter is above 1, the mean."""
    is_peaked = (alpha > 1.0) & (beta > 1.0)
    peak = (alpha - 1.0) / np.where(is_peaked, alpha + beta - 2.0, 1.0)
    flat = np.where((alpha <= 1.0) & (beta > 1.0), 0.0, alpha / (alpha + beta))
    flat = np.where((alpha > 1.0) & (beta <= 1.0), 1.0, flat)
    mode: _Numbers = np.where(is_peaked, peak, flat)
    return mode


def _log_gamma(numbers: _Numbers) -> _Numbers:
    """Return log Γ of each number: numpy has none."""
    return np.reshape([math.lgamma(number) for number in numbers.flat], numbers.shape)
