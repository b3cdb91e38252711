"""GSPO: the clipped loss with one ratio for a whole sequence instead of one for each token."""

from __future__ import annotations

from torch import Tensor

from bray_algo.losses.reductions import LossTerms
from bray_algo.precision import MAX_LOG_RATIO
from bray_algo.tokens import ratios
from bray_algo.tokens.reductions import Count, sequence_mean
from bray_algo.tokens.sequences import check_mask, lengths, spread, sums


def loss(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    mask: Tensor,
    sequence: Tensor | None = None,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
    weight: Tensor | None = None,
    num_sequences: Count | None = None,
) -> tuple[Tensor, LossTerms]:
    """Return the mean over sequences of −min(s A, clip(s, 1 − ε_low, 1 + ε_high) A).

    Zheng et al. 2025, "Group sequence policy optimization", equations 5 and 7: s is the geometric
    mean of π/π_old over the sequence's tokens. A reward judges the whole answer, and ratios of
    single tokens are noise, above all where experts of a mixture are routed differently.

    Args:
        log_prob: Log probability of each token under the current policy, `[B, T]`.
        old_log_prob: Log probability before the first update on this batch, `[B, T]`, a constant.
        advantage: Advantage of each token, `[B, T]`, a constant, usually one number a sequence.
        mask: The policy's own tokens, bool `[B, T]`.
        sequence: Number of each token's sequence, `[B, T]`; None is one sequence a row.
        clip_low: ε_low; the paper has 0.0003, as a mean over tokens moves far less than one token.
            Too large lets one batch ruin the policy; too small drops most sequences.
        clip_high: ε_high; the paper has 0.0004.
        weight: Weight of each token, `[B, T]`, a constant, such as `sampler.truncated_weight`;
            None is 1.
        num_sequences: Number of sequences of the whole step, as in `reductions.sequence_mean`.

    Returns:
        The loss, and the terms of `grpo.loss`; the clip's fractions are those of the sequences'
        ratios, each counted as often as it has tokens.

    Raises:
        ValueError: shapes do not agree, a number is not finite, a clip is out of its range, or
            `num_sequences` is not positive.
    """
    check_mask(mask, sequence)
    log_ratio, advantage = ratios.log_ratios(log_prob, old_log_prob, advantage, mask)
    length = lengths(mask, sequence).clamp(min=1).to(log_ratio.dtype)
    mean = spread(sums(log_ratio, mask, sequence), mask, sequence) / length
    ratio = mean.clamp(max=MAX_LOG_RATIO).exp()
    objective = ratios.clipped(ratio, advantage, clip_low, clip_high)
    total = -sequence_mean(objective, mask, sequence, weight=weight, num_sequences=num_sequences)
    terms = ratios.measures(log_ratio, ratio, advantage, mask, clip_low, clip_high)
    return total, {"policy_loss": total.detach(), **terms}
