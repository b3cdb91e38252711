"""The gap between what sampled the tokens and what trains on them, and weights against it.

A sampler with other kernels, another precision or older weights draws from μ, while the trainer
believes that π_old drew. Both log probabilities of the same tokens show the gap.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from bray_algo.losses.reductions import LossTerms, masked, masked_mean
from bray_algo.precision import MAX_LOG_RATIO, probability_ratio
from bray_algo.tokens.sequences import check_mask, spread, sums
from bray_algo.validation.scalars import check_limit
from bray_algo.validation.tensors import check_columns, check_shape
from bray_algo.validation.values import check_finite

Level = Literal["token", "sequence"]
"""What one importance weight is of: a token, or all tokens of a sequence."""


def truncated_weight(
    old_log_prob: Tensor,
    sampler_log_prob: Tensor,
    mask: Tensor,
    sequence: Tensor | None = None,
    *,
    max_weight: float = 2.0,
    level: Level = "token",
) -> Tensor:
    """Return min(π_old/μ, C) for each token, 0 where not own, `[B, T]`, without gradient.

    Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training";
    Ionides 2008, "Truncated importance sampling". It is the `weight` of a loss.

    Args:
        old_log_prob: Log probability of each token as the trainer computes it, `[B, T]`.
        sampler_log_prob: Log probability as the sampler gave it, of the distribution that it drew
            from (temperature, top-k and so on included), `[B, T]`.
        mask: The policy's own tokens, bool `[B, T]`.
        sequence: Number of each token's sequence, `[B, T]`, for `level="sequence"`; None is one
            sequence a row.
        max_weight: C, usually 2 to 8; inf is no bound. Too large is noisy; too small leaves the
            bias of the gap.
        level: `token` weighs each by itself, with little noise and some bias; `sequence` by the
            product over its sequence, which is unbiased and noisy where answers are long.

    Raises:
        ValueError: shapes do not agree, a number is not finite, C is not positive, or the level is
            another.
    """
    check_limit("max_weight", max_weight)
    if level not in ("token", "sequence"):
        raise ValueError(f"level: expected 'token' or 'sequence', got {level!r}")
    check_mask(mask, sequence)
    difference = _difference(old_log_prob, sampler_log_prob, mask)
    if level == "sequence":
        difference = spread(sums(difference, mask, sequence), mask, sequence)
    weight = probability_ratio(difference).clamp(max=max_weight)
    return weight.masked_fill(~mask, 0)


def gap(old_log_prob: Tensor, sampler_log_prob: Tensor, mask: Tensor) -> LossTerms:
    """Return measures of the gap over the policy's own tokens, scalars.

    With the same weights on both sides they are rounding errors: 1e-5 in float32 is usual, 0.1 is
    a fault (another mask, temperature or position) or a sampler in low precision.

    Args:
        old_log_prob: Log probability of each token as the trainer computes it, `[B, T]`.
        sampler_log_prob: Log probability as the sampler gave it, `[B, T]`.
        mask: The policy's own tokens, bool `[B, T]`.

    Returns:
        `sampler_gap` (mean of |log π_old − log μ|), `sampler_gap_max`, and `sampler_kl`, the k3
        estimate of KL(μ ‖ π_old), in nats.

    Raises:
        ValueError: shapes do not agree, or a number is not finite.
    """
    difference = _difference(old_log_prob, sampler_log_prob, mask)
    k3 = difference.clamp(max=MAX_LOG_RATIO).exp() - 1 - difference
    return {
        "sampler_gap": masked_mean(difference.abs(), mask),
        "sampler_gap_max": difference.abs().amax(),
        "sampler_kl": masked_mean(k3, mask),
    }


def _difference(old_log_prob: Tensor, sampler_log_prob: Tensor, mask: Tensor) -> Tensor:
    """Return log π_old − log μ, 0 where not own, `[B, T]`, without gradient."""
    check_columns(old_log_prob, sampler_log_prob=sampler_log_prob)
    check_mask(mask)
    check_shape("old_log_prob", old_log_prob, mask.shape)
    check_finite(mask, old_log_prob=old_log_prob, sampler_log_prob=sampler_log_prob)
    old, sampled = masked(mask, old_log_prob.detach(), sampler_log_prob.detach())
    return old - sampled
