"""CISPO: REINFORCE with clipped importance weights, so that every token keeps its gradient."""

from __future__ import annotations

from torch import Tensor

from bray_algo.losses.reductions import LossTerms, masked
from bray_algo.tokens import ratios
from bray_algo.tokens.reductions import Count, token_mean
from bray_algo.validation.scalars import check_limit, check_not_negative


def loss(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    min_ratio: float = 0.0,
    max_ratio: float = 5.0,
    weight: Tensor | None = None,
    num_tokens: Count | None = None,
) -> tuple[Tensor, LossTerms]:
    """Return −Σ w sg(clip(r, r_min, r_max)) A log π / `num_tokens`, r = π/π_old, sg a constant.

    MiniMax 2025, "MiniMax-M1", equations 4 and 5. Rare tokens that turn an argument ("however",
    "wait") have great ratios after the first update: the clip of PPO takes their gradient away,
    this one only bounds it.

    Args:
        log_prob: Log probability of each token under the current policy, `[B, T]`.
        old_log_prob: Log probability before the first update on this batch, `[B, T]`, a constant.
        advantage: Advantage of each token, `[B, T]`, a constant.
        mask: The policy's own tokens, bool `[B, T]`.
        min_ratio: r_min = 1 − ε_low, at least 0, which is no bound, as in the paper.
        max_ratio: r_max = 1 + ε_high, usually 2 to 8. Too large is noisy; too small learns little
            from what has become likely.
        weight: Weight of each token, `[B, T]`, a constant, such as `sampler.truncated_weight`;
            None is 1.
        num_tokens: Number of own tokens of the whole step, as in `reductions.token_mean`.

    Returns:
        The loss, and the terms of `grpo.loss`; a clipped token has a bounded gradient here.

    Raises:
        ValueError: shapes do not agree, a number is not finite, a bound is out of its range, or
            `num_tokens` is not positive.
    """
    check_not_negative("min_ratio", min_ratio)
    check_limit("max_ratio", max_ratio)
    if min_ratio > max_ratio:
        raise ValueError(f"min_ratio: expected max_ratio={max_ratio} or less, got {min_ratio}")
    log_ratio, advantage = ratios.log_ratios(log_prob, old_log_prob, advantage, mask)
    ratio = log_ratio.detach().exp()
    (own,) = masked(mask, log_prob)
    objective = ratio.clamp(min_ratio, max_ratio) * advantage * own
    total = -token_mean(objective, mask, weight=weight, num_tokens=num_tokens)
    clips = (1 - min_ratio, max_ratio - 1)
    terms = ratios.measures(log_ratio, ratio, advantage, mask, *clips)
    return total, {"policy_loss": total.detach(), **terms}
