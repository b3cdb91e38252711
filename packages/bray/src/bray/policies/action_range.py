"""The range of the reals of an action, as a density between bounds needs it."""

from __future__ import annotations

import torch
from torch import Tensor

from bray_core.action_vector import ActionVector


def action_range(actions: ActionVector) -> tuple[Tensor, Tensor] | None:
    """Return the least and greatest of each real, float32 `[D]`; None where one has no bounds.

    A number that cannot vary gets a range of its own size, at least 1, since there is no density
    on a point: what is drawn of it is clipped where it is taken.
    """
    low, high = (torch.tensor(b, dtype=torch.float32) for b in (actions.low, actions.high))
    if not (high - low).isfinite().all():
        return None
    return low, torch.where(high > low, high, low + low.abs().clamp(min=1.0))
