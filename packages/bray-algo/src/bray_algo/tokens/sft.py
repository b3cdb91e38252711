"""Supervised fine-tuning: the cross-entropy of demonstrated tokens."""

from __future__ import annotations

from torch import Tensor

from bray_algo.losses.reductions import LossTerms, masked_mean
from bray_algo.tokens.reductions import Count, token_mean
from bray_algo.tokens.sequences import check_mask
from bray_algo.validation.tensors import check_columns, check_shape
from bray_algo.validation.values import check_finite


def loss(
    log_prob: Tensor,
    mask: Tensor,
    *,
    weight: Tensor | None = None,
    num_tokens: Count | None = None,
) -> tuple[Tensor, LossTerms]:
    """Return −Σ w log π(token) / `num_tokens` over the demonstrated tokens.

    Args:
        log_prob: Log probability of each demonstrated token, `[B, T]`, as
            `prediction.token_log_prob` gives it.
        mask: Tokens to learn, usually the answers and not the prompts, bool `[B, T]`.
        weight: Weight of each token, `[B, T]`, a constant; None is 1.
        num_tokens: Number of tokens to learn of the whole step, as in `reductions.token_mean`.

    Returns:
        The loss, and `log_prob`, the plain mean over the tokens given.

    Raises:
        ValueError: shapes do not agree, a number is not finite, or `num_tokens` is not positive.
    """
    check_columns(log_prob)
    check_mask(mask)
    check_shape("log_prob", log_prob, mask.shape)
    check_finite(mask, log_prob=log_prob)
    total = -token_mean(log_prob, mask, weight=weight, num_tokens=num_tokens)
    return total, {"log_prob": masked_mean(log_prob.detach(), mask)}
