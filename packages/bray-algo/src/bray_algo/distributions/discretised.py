"""Continuous actions on a grid: a categorical over K points in each dimension.

Tang & Agrawal 2020, "Discretizing continuous action space for on-policy optimization". Logits are
`[…, D, K]`; the points of a dimension are K evenly spaced ones from `low` to `high`, both included.
`low` and `high` are numbers or tensors `[D]`. Probabilities are masses, not densities.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from bray_algo.distributions import categorical
from bray_algo.precision import wide
from bray_algo.validation.scalars import check_count
from bray_algo.validation.tensors import check_floats, check_numbers, check_shape
from bray_algo.validation.values import check_bounds, check_finite, check_index

Bound = float | Tensor


def ordinal(raw: Tensor) -> Tensor:
    """Turn a layer's outputs `[…, K]` into logits that know that neighbours are alike.

    Tang & Agrawal 2020, §4.2: logit_i = Σ_{j≤i} log σ(s_j) + Σ_{j>i} log(1 − σ(s_j)).
    """
    check_floats("raw", raw)
    raw = wide(raw)
    upward, downward = logsigmoid(raw), logsigmoid(-raw)
    # Sum over j > i: the sum from the end, without the own term.
    after = downward.flip(-1).cumsum(-1).flip(-1) - downward
    return upward.cumsum(-1) + after


def values(index: Tensor, num_points: int, low: Bound = -1.0, high: Bound = 1.0) -> Tensor:
    """Return the actions `[…, D]` of grid points 0 to K − 1 `[…, D]`, as float32.

    Raises:
        ValueError: fewer than two points, low is not below high, or an index is no point's.
    """
    _check_points(num_points, low, high)
    check_index("index", index, num_points)
    return low + index.to(torch.float32) * ((high - low) / (num_points - 1))


def nearest(action: Tensor, num_points: int, low: Bound = -1.0, high: Bound = 1.0) -> Tensor:
    """Return the grid points `[…, D]` next to actions `[…, D]`; those outside get the ends.

    Raises:
        ValueError: fewer than two points, low is not below high, or an action is not finite.
    """
    _check_points(num_points, low, high)
    check_numbers("action", action)
    check_finite(action=action)
    action = action.to(torch.promote_types(action.dtype, torch.float32))  # half lacks the digits
    place = (action - low) / (high - low) * (num_points - 1)
    # Unseen, NaN becomes the first point, not an index that kills a GPU's context.
    return place.round().clamp(0, num_points - 1).nan_to_num(0.0).long()


def log_prob(logits: Tensor, action: Tensor, low: Bound = -1.0, high: Bound = 1.0) -> Tensor:
    """Return log p of the grid points next to actions `[…, D]`, summed over D.

    Raises:
        ValueError: shapes do not agree; every function of this file refuses that.
    """
    check_floats("logits", logits)
    check_shape("action", action, logits.shape[:-1])
    index = nearest(action, logits.shape[-1], low, high)
    return categorical.log_prob(logits, index).sum(-1)


def entropy(logits: Tensor) -> Tensor:
    """Return the entropy over the grid `[…]`, in nats."""
    return categorical.entropy(logits).sum(-1)


def kl(logits_p: Tensor, logits_q: Tensor) -> Tensor:
    """Return KL(p ‖ q), `[…]`, in nats."""
    check_floats("logits_p", logits_p)
    check_shape("logits_q", logits_q, logits_p.shape)
    return categorical.kl(logits_p, logits_q).sum(-1)


def sample(
    logits: Tensor,
    low: Bound = -1.0,
    high: Bound = 1.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw actions `[…, D]`."""
    return values(categorical.sample(logits, generator), logits.shape[-1], low, high)


def mode(logits: Tensor, low: Bound = -1.0, high: Bound = 1.0) -> Tensor:
    """Return the most likely actions `[…, D]`."""
    return values(categorical.mode(logits), logits.shape[-1], low, high)


def _check_points(num_points: int, low: Bound, high: Bound) -> None:
    check_count("num_points, the last axis of logits", num_points, 2)
    check_bounds(low, high)
