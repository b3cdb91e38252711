"""One-step and n-step targets of flat batches `[N]`.

Value-based losses take a `discount [N]`, which says all about what follows a transition: γⁿ where
the value n steps on counts, 0 where the episode terminated before. A truncated transition keeps its
discount, and its next observation is its own episode's last.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bray_algo.precision import alike
from bray_algo.validation.scalars import check_fraction, check_not_negative
from bray_algo.validation.switch import is_validated
from bray_algo.validation.tensors import check_flags, check_numbers, check_shape, check_tensor
from bray_algo.validation.values import check_finite, check_within


def discount(gamma: float, terminated: Tensor, steps: Tensor | int = 1) -> Tensor:
    """Return γⁿ, or 0 where terminated, `[N]` in float32.

    Args:
        gamma: Discount γ of one step, 0 to 1; usually 0.95 to 0.999, see `advantages.gae`.
        terminated: Transitions whose episode ended for good within the n steps, bool `[N]`.
        steps: Number n of rewards that each transition sums, one number or `[N]`; usually 1 to 5.
            More let rewards travel faster, and mix in what an older policy did.

    Raises:
        ValueError: γ or n is out of range, or shapes or types do not agree.
    """
    check_fraction("gamma", gamma)
    check_tensor("terminated", terminated)
    if terminated.dtype != torch.bool:
        raise ValueError(f"terminated: expected bool, got {terminated.dtype}")
    if isinstance(steps, Tensor):
        check_numbers("steps", steps)
        check_shape("steps", steps, terminated.shape)
        check_within(0, math.inf, steps=steps)
    else:
        check_not_negative("steps", steps)
    base = torch.tensor(gamma, dtype=torch.float32, device=terminated.device)
    return base.pow(steps).expand_as(terminated).masked_fill(terminated, 0.0)


def bootstrap(
    reward: Tensor, discount: Tensor, next_value: Tensor, *, name: str = "next_value"
) -> Tensor:
    """Return r + d V', `[N]`, without gradient; r alone where d is 0, even if V' is NaN there.

    Args:
        reward: Reward r, or the discounted sum of n rewards, `[N]`.
        discount: Discount d, as `discount` gives it, `[N]`.
        next_value: Value V' of what follows, `[N]`.
        name: Name of V' in errors.

    Raises:
        ValueError: shapes do not agree, or a number is not finite.
    """
    check_tensor("reward", reward)
    check_shape("discount", discount, reward.shape)
    check_numbers(name, next_value)
    check_shape(name, next_value, reward.shape)
    check_finite(reward=reward, discount=discount)
    check_finite(discount != 0, **{name: next_value})
    reward, discount, next_value = alike(reward, discount, next_value)
    # Filled, not multiplied: 0 times an infinite value is NaN.
    following = (discount * next_value).masked_fill(discount == 0, 0.0)
    return (reward + following).detach()


def check_legal(legal: Tensor, like: Tensor, discount: Tensor) -> None:
    """Refuse masks `[N, A]` of a wrong shape, and rows without an action where the value counts."""
    check_tensor("next_legal", legal)
    check_flags("next_legal", legal, like.shape[:2])
    if is_validated(legal) and bool((~legal.any(-1) & (discount != 0)).any()):
        raise ValueError("next_legal: got a row of no legal action whose discount is not 0")
