"""The ratio π/π_old of tokens, and the clipped objective that is made of it."""

from __future__ import annotations

import torch
from torch import Tensor

from bray_algo.losses.reductions import LossTerms, masked, masked_mean
from bray_algo.precision import MAX_LOG_RATIO
from bray_algo.tokens.sequences import check_mask
from bray_algo.validation.scalars import check_limit
from bray_algo.validation.tensors import check_columns, check_shape
from bray_algo.validation.values import check_finite


def log_ratios(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Return log π − log π_old, at most `MAX_LOG_RATIO`, and the advantage, 0 where not own.

    Only `log_prob` has a gradient.

    Raises:
        ValueError: shapes are not all `[B, T]`, or a number of an own token is not finite.
    """
    check_columns(log_prob, old_log_prob=old_log_prob, advantage=advantage)
    check_mask(mask)
    check_shape("log_prob", log_prob, mask.shape)
    check_finite(mask, log_prob=log_prob, old_log_prob=old_log_prob, advantage=advantage)
    columns = masked(mask, log_prob, old_log_prob.detach(), advantage.detach())
    return (columns[0] - columns[1]).clamp(max=MAX_LOG_RATIO), columns[2]


def clipped(ratio: Tensor, advantage: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """Return min(r A, clip(r, 1 − ε_low, 1 + ε_high) A), `[B, T]`.

    Raises:
        ValueError: a clip is not positive.
    """
    check_limit("clip_low", clip_low)
    check_limit("clip_high", clip_high)
    held = ratio.clamp(1 - clip_low, 1 + clip_high)
    return torch.minimum(ratio * advantage, held * advantage)


def measures(
    log_ratio: Tensor,
    ratio: Tensor,
    advantage: Tensor,
    mask: Tensor,
    clip_low: float,
    clip_high: float,
) -> LossTerms:
    """Return the terms `approx_kl`, `clip_fraction_low` and `clip_fraction_high`.

    They are plain means over the own tokens given. A token counts as clipped where the clip binds,
    that is, takes its gradient away: below 1 − ε_low with A < 0, above 1 + ε_high with A > 0.
    """
    log_ratio, ratio = log_ratio.detach(), ratio.detach()
    low = (ratio < 1 - clip_low) & (advantage < 0)
    high = (ratio > 1 + clip_high) & (advantage > 0)
    return {
        # k3 of Schulman 2020, "Approximating KL divergence": unbiased, and never below 0.
        "approx_kl": masked_mean(log_ratio.exp() - 1 - log_ratio, mask),
        "clip_fraction_low": masked_mean(low.to(ratio.dtype), mask),
        "clip_fraction_high": masked_mean(high.to(ratio.dtype), mask),
    }
