"""Unbounded numbers squashed by tanh between two bounds, as SAC's actions are.

Haarnoja et al. 2018, "Soft actor-critic algorithms and applications", appendix C.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

_Array = npt.NDArray[Any]


def squash(unbounded: _Array, low: _Array, high: _Array) -> _Array:
    """Return low + (high − low) (tanh(u) + 1) / 2, float32, never outside the bounds."""
    action = low + (high - low) * 0.5 * (np.tanh(unbounded) + 1.0)
    return np.clip(action, low, high).astype(np.float32)


def log_slope(unbounded: _Array, low: _Array, high: _Array) -> _Array:
    """Return log |d squash / du|: what its logarithmic density loses, without overflow at far u."""
    # log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u))
    slope = 2.0 * (math.log(2.0) - unbounded - np.logaddexp(0.0, -2.0 * unbounded))
    return slope + np.log((high - low) * 0.5)
