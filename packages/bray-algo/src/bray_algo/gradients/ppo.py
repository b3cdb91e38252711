"""PPO's loss with its gradients by hand: `ppo.loss` in a third of the operations.

The value of a loss over some hundred samples takes no time; the thirty operations that it is made
of, and as many on the way back, do. Columns are `[N]`; formulas and arguments are those of `ppo`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bray_algo.losses import ppo
from bray_algo.losses.reductions import LossTerms
from bray_algo.precision import MAX_LOG_RATIO, alike
from bray_algo.validation.scalars import check_limit, check_not_negative
from bray_algo.validation.switch import is_validated
from bray_algo.validation.tensors import check_columns


class PPOGradients(NamedTuple):
    """The loss, its terms, and the loss's gradient by each column that the policy gives."""

    loss: Tensor
    terms: LossTerms
    """`policy_loss`, `value_loss`, `entropy`, `approx_kl` and `clip_fraction`."""
    log_prob: Tensor
    """`[N]`."""
    value: Tensor
    """`[N]`."""
    entropy: float
    """The same for every sample."""


def loss_and_gradients(
    log_prob: Tensor,
    entropy: Tensor,
    value: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    target: Tensor,
    *,
    clip: float = 0.2,
    value_coefficient: float = 0.5,
    entropy_coefficient: float = 0.0,
    value_clip: float | None = None,
    old_value: Tensor | None = None,
) -> PPOGradients:
    """Return `ppo.loss` of these columns and its gradients; numbers that are not finite go through.

    Columns come without a graph; arguments are those of `ppo.loss`.

    Raises:
        ValueError: shapes do not agree, or a setting is out of its range.
    """
    check_columns(log_prob, entropy=entropy, value=value, old_log_prob=old_log_prob)
    check_columns(log_prob, advantage=advantage, target=target, old_value=old_value)
    check_limit("clip", clip)
    check_not_negative("value_coefficient", value_coefficient)
    check_not_negative("entropy_coefficient", entropy_coefficient)
    log_prob, entropy, value, old_log_prob, advantage, target = alike(
        log_prob, entropy, value, old_log_prob, advantage, target
    )
    policy_loss, of_log_prob, terms = _surrogate(log_prob, old_log_prob, advantage, clip)
    value_loss, of_value = _value_error(value, target, value_clip, old_value)
    loss, parts = ppo.actor_critic(
        policy_loss, value_loss, entropy.mean(), value_coefficient, entropy_coefficient, terms
    )
    count = log_prob.numel()
    return PPOGradients(
        loss,
        parts,
        of_log_prob.mul_(-1 / count),
        of_value.mul_(value_coefficient / count),
        -entropy_coefficient / count,
    )


def loss(
    log_prob: Tensor,
    entropy: Tensor,
    value: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    target: Tensor,
    **settings: Any,
) -> tuple[Tensor, LossTerms]:
    """Return `ppo.loss`, which autograd differentiates as one operation, and only once.

    Args:
        log_prob: see `ppo.loss`, as for all of them.
        entropy: see there.
        value: see there.
        old_log_prob: see there.
        advantage: see there.
        target: see there.
        settings: `clip`, `value_coefficient`, `entropy_coefficient`, `value_clip`, `old_value`.

    Raises:
        ValueError: `ppo.loss` would refuse an argument.
    """
    columns = (log_prob, entropy, value, old_log_prob, advantage, target)
    found = loss_and_gradients(*(column.detach() for column in columns), **settings)
    if is_suspect(found.loss, log_prob, old_log_prob):
        return ppo.loss(*columns, **settings)
    total: Tensor = _Loss.apply(log_prob, entropy, value, found)
    return total, found.terms


def is_suspect(loss: Tensor, log_prob: Tensor, old_log_prob: Tensor) -> bool:
    """Return whether a number that went in may not have been finite; `ppo.loss` names it then.

    Looked at once for all columns: the loss is not finite if an advantage, a value, a target or an
    entropy is not, and the clip hides nothing but log probabilities. Where values are not checked
    (`validation`), nothing is looked at.
    """
    if not is_validated(loss):
        return False
    return not math.isfinite(loss.detach() + (log_prob.detach() - old_log_prob).sum())


class _Loss(torch.autograd.Function):
    """A loss whose gradients are known already."""

    @staticmethod
    def forward(
        ctx: Any, log_prob: Tensor, entropy: Tensor, value: Tensor, found: PPOGradients
    ) -> Tensor:
        ctx.found = found
        ctx.kinds = log_prob.dtype, entropy.dtype, value.dtype
        ctx.shape = entropy.shape
        return found.loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        found, kinds = ctx.found, ctx.kinds
        of_entropy = (gradient * found.entropy).expand(ctx.shape) if found.entropy else None
        return (
            (found.log_prob * gradient).to(kinds[0]),
            None if of_entropy is None else of_entropy.to(kinds[1]),
            (found.value * gradient).to(kinds[2]),
            None,
        )


def _surrogate(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip: float
) -> tuple[Tensor, Tensor, LossTerms]:
    """Return −L^CLIP, N times the gradient of L^CLIP by `log_prob`, and the terms."""
    raw = log_prob - old_log_prob
    log_ratio = raw.clamp(max=MAX_LOG_RATIO)
    ratio = log_ratio.exp()
    free = ratio * advantage
    held = ratio.clamp(1 - clip, 1 + clip).mul_(advantage)
    # Where the clip binds there is no gradient; inside it both are the same number. Nor is there
    # any beyond the greatest ratio.
    gradient = free * (free <= held) * (raw <= MAX_LOG_RATIO)
    moved = ratio - 1
    terms = {
        "approx_kl": (moved - log_ratio).mean(),
        "clip_fraction": (moved.abs() > clip).to(ratio.dtype).mean(),
    }
    return -torch.minimum(free, held).mean(), gradient, terms


def _value_error(
    value: Tensor, target: Tensor, value_clip: float | None, old_value: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the mean squared error, and N times its gradient by `value`."""
    error = value - target
    if value_clip is None or old_value is None:
        if value_clip is not None or old_value is not None:
            ppo.value_error(value, target, value_clip=value_clip, old_value=old_value)  # refuses
        return error.square().mean(), error.mul_(2)
    check_limit("value_clip", value_clip)
    moved = value - old_value
    held = (old_value + moved.clamp(-value_clip, value_clip) - target).square()
    square = error.square()
    has_gradient = (square >= held) | (moved.abs() <= value_clip)
    return torch.maximum(square, held).mean(), (2 * error).mul_(has_gradient)
