"""Ratios of probabilities π/μ out of their logarithms, which never overflow."""

from __future__ import annotations

from torch import Tensor

from bray_algo.precision import wide

MAX_LOG_RATIO = 20.0
"""Where a ratio stops growing: e^20 = 4.9e8. Products of two are finite in float32 (e^89 is not),
so that a weight of an unclipped V-trace times 0 is 0, and far beyond any clip. No gradient there.
"""


def ratio(log_ratio: Tensor) -> Tensor:
    """Return π/μ of log π − log μ, `[…]`, e^20 at the most; in float32 at least."""
    return wide(log_ratio).clamp(max=MAX_LOG_RATIO).exp()
