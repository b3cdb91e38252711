"""Twin delayed deep deterministic policy gradient (TD3), over flat batches `[N]` and K critics.

Fujimoto et al. 2018, "Addressing function approximation error in actor-critic methods". The critics
learn by `critics.critic_loss` each step, the actor and the targets (`polyak_`) each `delay` steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bray_algo.losses import critics
from bray_algo.losses.reductions import LossTerms
from bray_algo.precision import wide
from bray_algo.returns.targets import bootstrap
from bray_algo.validation.scalars import (
    check_count,
    check_limit,
    check_not_negative,
    check_positive,
)
from bray_algo.validation.tensors import check_floats, check_rank, check_shape
from bray_algo.validation.values import check_bounds, check_finite


def smoothed(
    action: Tensor,
    *,
    low: Tensor | float = -1.0,
    high: Tensor | float = 1.0,
    noise: float = 0.2,
    noise_clip: float = 0.5,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return target actions with clipped noise, `[N, D]`, without gradient (equations 14, 15).

    Args:
        action: Action of the target policy at the next observation, `[N, D]`.
        low: Least action, one number or `[D]`.
        high: Greatest action, one number or `[D]`.
        noise: Standard deviation of the noise, in halves of the range from low to high; usually
            0.2. It keeps the actor from narrow peaks of the critic; too large blurs what matters.
        noise_clip: Greatest size of the noise, in the same unit; usually 0.5.
        generator: Source of the noise; None is torch's own.

    Raises:
        ValueError: shapes do not agree, a noise is not positive, or low is not below high.
    """
    check_rank("action", action, "N, D")
    check_floats("action", action)
    check_positive("noise", noise)
    check_limit("noise_clip", noise_clip)
    check_bounds(low, high)
    low, high = (torch.as_tensor(bound).to(action) for bound in (low, high))
    for name, bound in (("low", low), ("high", high)):
        if bound.shape not in (torch.Size([]), action.shape[1:]):
            raise ValueError(
                f"{name}: expected a number or shape {tuple(action.shape[1:])}, "
                f"got {tuple(bound.shape)}"
            )
    drawn = torch.randn(action.shape, generator=generator, dtype=action.dtype, device=action.device)
    # Half the range is the unit, so that the same noise fits any bounds.
    drawn = (drawn * noise).clamp(-noise_clip, noise_clip) * (high - low) / 2
    return torch.minimum(torch.maximum(action.detach() + drawn, low), high)


def target(next_q: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
    """Return r + d min_k Q'_k(s', ã), `[N]`, without gradient (equation 10).

    Args:
        next_q: Values by the target critics of the next observation and the `smoothed` action,
            `[K, N]`.
        reward: Reward r, or the discounted sum of n rewards, `[N]`.
        discount: γⁿ, or 0 where the episode terminated, `[N]`: see `targets.discount`.

    Raises:
        ValueError: shapes do not agree.
    """
    check_rank("next_q", next_q, "K, N")
    check_shape("discount", discount, next_q.shape[1:])
    check_finite(discount != 0, next_q=next_q)
    return bootstrap(reward, discount, critics.lowest(next_q))


def actor_loss(q: Tensor) -> tuple[Tensor, LossTerms]:
    """Return the mean of −Q_1(s, π(s)) (Algorithm 1, the deterministic policy gradient).

    Args:
        q: Value by the first critic of the current policy's own actions, `[N]`. Freeze the critic's
            parameters, or drop the gradient that they get.

    Raises:
        ValueError: not one value for each row.
    """
    check_rank("q", q, "N")
    check_finite(q=q)
    q = wide(q)
    return -q.mean(), {"q": q.detach().mean()}


def is_actor_step(step: int, delay: int = 2) -> bool:
    """Return whether the actor and the targets learn in this step (0, 1, …): each `delay`-th.

    Args:
        step: Number of the critics' step, from 0.
        delay: Steps of the critics for each step of the actor, usually 2; more let the critics
            settle first, and the actor learns more slowly.

    Raises:
        ValueError: the delay is not positive, or the step negative.
    """
    check_not_negative("step", step)
    check_count("delay", delay)
    # The last of each `delay` steps, so that the critics learn before the actor does.
    return step % delay == delay - 1
