"""PPO's loss with its gradients by hand: `ppo.loss` in a third of the operations.

The value of a loss over some hundred samples takes no time; the thirty operations that it is made
of, and as many on the way back, do. A call of numpy takes a third of one of torch: short columns
are read by numpy, and each formula is written once, with what both libraries have under one name.
Columns are `[N]`; formulas and arguments are those of `ppo`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bray_algo.losses import ppo
from bray_algo.losses.reductions import LossTerms
from bray_algo.precision import MAX_LOG_RATIO, alike
from bray_algo.validation.scalars import check_limit, check_not_negative
from bray_algo.validation.switch import is_readable, is_validated
from bray_algo.validation.tensors import check_columns

_SHORT = 4096
"""Samples up to which numpy is quicker: torch has more threads."""
_WILD = 1e8
"""Sum of e^x − 1 − x that a log ratio x of `MAX_LOG_RATIO` exceeds."""
_TERMS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


class PPOGradients(NamedTuple):
    """The loss, its terms, and the loss's gradient by each column that the policy gives."""

    loss: Tensor
    terms: dict[str, Any]
    """Scalars of torch or numpy: `policy_loss`, `value_loss`, `entropy`, `approx_kl` and
    `clip_fraction`."""
    log_prob: Tensor
    """`[N]`."""
    value: Tensor
    """`[N]`."""
    entropy: float
    """The same for every sample."""
    is_suspect: bool
    """Whether a number that went in may not have been finite; `ppo.loss` names it then.

    Looked at once for all columns: the loss is not finite if an advantage, a value, a target or an
    entropy is not, and the clip hides nothing but log probabilities. Where values are not checked
    (`validation`), nothing is looked at."""


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
    columns: tuple[Tensor, ...] = (log_prob, entropy, value, old_log_prob, advantage, target)
    if not _are_usual(columns) or old_value is not None:  # the checks take time
        check_columns(
            log_prob,
            entropy=entropy,
            value=value,
            old_log_prob=old_log_prob,
            advantage=advantage,
            target=target,
            old_value=old_value,
        )
        columns = alike(*columns)
    check_limit("clip", clip)
    check_not_negative("value_coefficient", value_coefficient)
    check_not_negative("entropy_coefficient", entropy_coefficient)
    if (value_clip is None) != (old_value is None):
        ppo.value_error(value, target, value_clip=value_clip, old_value=old_value)  # refuses
    extra = () if old_value is None else (old_value.detach(),)
    count = log_prob.numel()
    read: Any = [*columns, *extra]
    is_short = count <= _SHORT and is_readable(log_prob)
    xp: Any = np if is_short else torch
    log_p, bonus, predicted, old_log_p, gain, aim, *old = (
        map(Tensor.numpy, read) if is_short else read
    )
    with np.errstate(all="ignore"):
        raw = log_p - old_log_p
        policy_loss, of_log_prob, terms = _surrogate(xp, raw, gain, clip)
        value_loss, of_value = _value_error(xp, predicted, aim, value_clip, *old)
        parts = [policy_loss, value_loss, bonus.sum() / count, *terms]
        total = policy_loss + value_coefficient * value_loss - entropy_coefficient * parts[2]
        of_log_prob *= -1 / count
        of_value *= 2 * value_coefficient / count
        is_suspect = is_validated(log_prob) and not math.isfinite(total + raw.sum())
    return PPOGradients(
        torch.from_numpy(np.asarray(total)) if is_short else total,
        dict(zip(_TERMS, parts, strict=True)),
        torch.from_numpy(of_log_prob) if is_short else of_log_prob,
        torch.from_numpy(of_value) if is_short else of_value,
        -entropy_coefficient / count,
        is_suspect,
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
    if found.is_suspect:
        return ppo.loss(*columns, **settings)
    total: Tensor = _Loss.apply(log_prob, entropy, value, found)
    terms = {name: torch.as_tensor(term) for name, term in found.terms.items()}
    return total, terms


def _are_usual(columns: tuple[Tensor, ...]) -> bool:
    """Return whether these are columns of one shape in float32, which they are nearly always."""
    first = columns[0]
    kind, shape = torch.float32, first.shape
    return bool(first.numel()) and all(
        type(one) is Tensor and one.dtype == kind and one.shape == shape for one in columns
    )


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


def _surrogate(xp: Any, raw: Any, advantage: Any, clip: float) -> tuple[Any, Any, list[Any]]:
    """Return −L^CLIP, N times the gradient of L^CLIP by `log_prob`, and the two measures.

    Args:
        xp: numpy or torch, whose arrays the columns are.
        raw: log π − log π_old, which are not more than `MAX_LOG_RATIO` but for a policy gone wild.
        advantage: advantages.
        clip: ε.
    """
    count = math.prod(raw.shape)
    ratio = xp.exp(raw)
    divergence = (ratio - 1 - raw).sum() / count
    # Each sample's is not below 0: one ratio that is too great shows in the sum of all.
    is_wild = xp is torch or not divergence * count < _WILD  # a GPU is not waited for
    if is_wild:
        log_ratio = raw.clip(None, MAX_LOG_RATIO)
        ratio = xp.exp(log_ratio)
        divergence = (ratio - 1 - log_ratio).sum() / count
    free = ratio * advantage
    held = ratio.clip(1 - clip, 1 + clip)
    clip_fraction = xp.count_nonzero(held != ratio) / count
    held *= advantage
    # Where the clip binds there is no gradient; inside it both are the same number. Nor is there
    # any beyond the greatest ratio.
    gradient = free * (free <= held)
    if is_wild:
        gradient *= raw <= MAX_LOG_RATIO
    return -xp.minimum(free, held).sum() / count, gradient, [divergence, clip_fraction]


def _value_error(
    xp: Any, value: Any, target: Any, value_clip: float | None, old_value: Any = None
) -> tuple[Any, Any]:
    """Return the mean squared error, and half of N times its gradient by `value`."""
    error = value - target
    square = error * error
    count = math.prod(error.shape)
    if value_clip is None:
        return square.sum() / count, error
    check_limit("value_clip", value_clip)
    moved = value - old_value
    held = (old_value + moved.clip(-value_clip, value_clip) - target) ** 2
    has_gradient = (square >= held) | (abs(moved) <= value_clip)
    return xp.maximum(square, held).sum() / count, error * has_gradient
