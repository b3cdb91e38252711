"""Rewards of answers, brought to tokens: the outcome at the end; penalties for KL and length."""

from __future__ import annotations

from torch import Tensor

from bray_algo.precision import wide
from bray_algo.tokens.divergence import Estimator, kl
from bray_algo.tokens.sequences import check_mask, ends, spread
from bray_algo.validation.scalars import check_not_negative, check_positive
from bray_algo.validation.tensors import check_columns, check_numbers, check_rank
from bray_algo.validation.values import check_finite


def overlong_penalty(answer_length: Tensor, *, max_length: float, buffer: float) -> Tensor:
    """Return the penalty of long answers, `[N]`: 0 to −1, to add to their rewards.

    Yu et al. 2025, "DAPO", equation 13: 0 up to L_max − L_cache tokens, −1 beyond L_max, and a
    straight line between. An answer that is cut off says nothing of its reasoning, so punishing it
    like a wrong one is noise; a slope says what is wrong.

    Args:
        answer_length: Number of tokens of each answer, `[N]`.
        max_length: L_max, from which on the penalty is whole, in tokens.
        buffer: L_cache, the length of the slope, in tokens, at most `max_length`; the paper has
            4,096 of 20,480. Too short a slope punishes without warning; a long one rewards brevity.

    Raises:
        ValueError: a number is not positive, or `buffer` is greater than `max_length`.
    """
    check_rank("answer_length", answer_length, "N")
    check_numbers("answer_length", answer_length)
    check_finite(answer_length=answer_length)
    check_positive("max_length", max_length)
    check_positive("buffer", buffer)
    if buffer > max_length:
        raise ValueError(f"buffer: expected max_length={max_length} or less, got {buffer}")
    return ((max_length - buffer - wide(answer_length)) / buffer).clamp(-1, 0)


def at_end(reward: Tensor, mask: Tensor, sequence: Tensor | None = None) -> Tensor:
    """Return each answer's reward at its last own token, and 0 elsewhere, `[B, T]`.

    Args:
        reward: Reward of each sequence, `[S]`; without `sequence` one a row, `[B]`.
        mask: The policy's own tokens, bool `[B, T]`.
        sequence: Number of each token's sequence, `[B, T]`; None is one sequence a row.

    Raises:
        ValueError: shapes or types are not these, or a reward is not finite.
    """
    check_rank("reward", reward, "S")
    check_numbers("reward", reward)
    check_mask(mask, sequence, len(reward))
    check_finite(reward=reward)
    last = ends(mask, sequence)
    return spread(reward, last, sequence)


def kl_penalised(
    reward: Tensor,
    log_prob: Tensor,
    reference_log_prob: Tensor,
    mask: Tensor,
    sequence: Tensor | None = None,
    *,
    kl_coefficient: float,
    estimator: Estimator = "k1",
) -> Tensor:
    """Return rewards of tokens: −β KL_t, and the answer's reward at its last token, `[B, T]`.

    Ouyang et al. 2022, "Training language models to follow instructions", equation 2. A KL in the
    reward, unlike one in the loss, counts what a token does to all later ones; there k1 is the
    estimator that gives the KL's own gradient on average.

    Args:
        reward: Reward of each sequence, `[S]`; without `sequence` one a row, `[B]`.
        log_prob: Log probability of each token under the policy that sampled it, `[B, T]`, a
            constant.
        reference_log_prob: The same under the reference, `[B, T]`, a constant.
        mask: The policy's own tokens, bool `[B, T]`.
        sequence: Number of each token's sequence, `[B, T]`; None is one sequence a row.
        kl_coefficient: β in units of the reward a nat, usually 0.001 to 0.1. Too large holds the
            policy at the reference; too small lets it drift into text that only scores well.
        estimator: Which estimate of the KL, as in `divergence.kl`.

    Raises:
        ValueError: shapes or types are not these, a number is not finite, or β is negative.
    """
    check_not_negative("kl_coefficient", kl_coefficient)
    check_columns(log_prob, reference_log_prob=reference_log_prob)
    outcome = at_end(reward, mask, sequence)
    penalty = kl(log_prob.detach(), reference_log_prob, mask, estimator=estimator)
    return outcome - kl_coefficient * penalty
