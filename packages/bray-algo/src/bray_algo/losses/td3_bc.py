"""TD3 with behaviour cloning (TD3+BC), over flat batches `[N]`: offline, by one term more.

Fujimoto and Gu 2021, "A minimalist approach to offline reinforcement learning" (arXiv 2106.06860).
Critics, targets and delay are those of `td3`.
"""

from __future__ import annotations

from torch import Tensor

from bray_algo.losses.reductions import LossTerms
from bray_algo.precision import wide
from bray_algo.validation.scalars import check_positive
from bray_algo.validation.tensors import check_numbers, check_rank, check_shape
from bray_algo.validation.values import check_finite

_LEAST_SIZE = 1e-8
"""Least mean size of the values, so that values of 0 give a finite weight."""


def actor_loss(
    q: Tensor, action: Tensor, recorded: Tensor, *, alpha: float = 2.5
) -> tuple[Tensor, LossTerms]:
    """Return the mean of (π(s) − a*)² − λ Q_1(s, π(s)), with λ = α / mean |Q_1| (equations 3, 4).

    The square is a mean over the dimensions too, as α was chosen for.

    Args:
        q: Value by the first critic of the current policy's own actions, `[N]`. Freeze the critic's
            parameters, or drop the gradient that they get.
        action: These actions π(s), `[N, D]`, scaled to (−1, 1).
        recorded: Recorded actions a*, `[N, D]`, scaled alike, constants.
        alpha: α, the weight of the values beside the cloning, whatever their size is. 0.5 hardly
            leaves what was recorded, which suits an expert's data; 2.5 is usual; far above it is
            TD3, which trusts values of actions that nobody tried.

    Returns:
        The loss, and `q` and `squared_error`, their means.

    Raises:
        ValueError: shapes do not agree, or α is not positive.
    """
    check_positive("alpha", alpha)
    check_rank("q", q, "N")
    check_rank("action", action, "N, D")
    check_numbers("recorded", recorded)
    check_shape("recorded", recorded, action.shape)
    check_shape("q", q, action.shape[:1])
    check_finite(q=q, action=action, recorded=recorded)
    q = wide(q)
    # By the size of the values themselves, so that α means the same whatever rewards are worth.
    weight = alpha / q.detach().abs().mean().clamp(min=_LEAST_SIZE)
    squared = (wide(action) - wide(recorded).detach()).square().mean()
    return squared - weight * q.mean(), {"q": q.detach().mean(), "squared_error": squared.detach()}
