"""Means over tokens and over sequences, exact however a step is cut into parts.

A mean of the parts' means would let a token of a short part count more than one of a long part. So
the divisor is an argument: the number of tokens (or sequences) of the whole step.
"""

from __future__ import annotations

from torch import Tensor

from bray_algo.losses.reductions import masked
from bray_algo.tokens.sequences import check_mask, lengths, sums
from bray_algo.validation.scalars import check_positive
from bray_algo.validation.switch import is_validated
from bray_algo.validation.tensors import check_numbers, check_shape
from bray_algo.validation.values import check_finite

Count = float | Tensor
"""A number of tokens or sequences: a plain number, or a scalar tensor as a sum over ranks is."""


def token_mean(
    column: Tensor,
    mask: Tensor,
    *,
    weight: Tensor | None = None,
    num_tokens: Count | None = None,
) -> Tensor:
    """Return Σ w x / `num_tokens` over the policy's own tokens; in float32 at least.

    Yu et al. 2025, "DAPO", §3.3: every token of a batch counts the same, also in long answers.

    Args:
        column: A number for each token, `[B, T]`.
        mask: The policy's own tokens, bool `[B, T]`.
        weight: Weight of each token, `[B, T]`, a constant; None is 1.
        num_tokens: Divisor: the number of own tokens of the whole step, over all of its parts and
            ranks. None is the number here, at least 1. Dr. GRPO's constant divisor (Liu et al.
            2025, "Understanding R1-Zero-like training", §3.2) is the number of answers times the
            greatest length.

    Raises:
        ValueError: shapes do not agree, a number is not finite, or `num_tokens` is not positive.
    """
    check_mask(mask)
    check_numbers("column", column)
    check_shape("column", column, mask.shape)
    check_finite(mask, column=column)
    divisor = mask.sum().clamp(min=1) if num_tokens is None else num_tokens
    check_divisor("num_tokens", divisor)
    return weighted(column, weight, mask).sum() / divisor


def sequence_mean(
    column: Tensor,
    mask: Tensor,
    sequence: Tensor | None = None,
    *,
    weight: Tensor | None = None,
    num_sequences: Count | None = None,
) -> Tensor:
    """Return the mean over sequences of the mean over each one's own tokens.

    Shao et al. 2024, "DeepSeekMath", equation 3: GRPO's own mean, in which tokens of long answers
    count less. It is `token_mean` with the weights of `sequence_weight`.

    Args:
        column: A number for each token, `[B, T]`.
        mask: The policy's own tokens, bool `[B, T]`.
        sequence: Number of each token's sequence, `[B, T]`; None is one sequence a row.
        weight: Weight of each token, `[B, T]`, a constant; None is 1.
        num_sequences: Divisor: the number of sequences of the whole step, over all of its parts
            and ranks. None is the number here that have own tokens, at least 1.

    Raises:
        ValueError: shapes do not agree, a number is not finite, or the divisor is not positive.
    """
    divisor = count_sequences(mask, sequence) if num_sequences is None else num_sequences
    check_divisor("num_sequences", divisor)
    share = sequence_weight(mask, sequence)
    if weight is not None:
        check_weight(weight, mask)
        share = share * weighted(weight, None, mask).detach()
    return token_mean(column, mask, weight=share, num_tokens=divisor)


def sequence_weight(mask: Tensor, sequence: Tensor | None = None) -> Tensor:
    """Return 1 / |o| at each own token, |o| the own tokens of its sequence, float64 `[B, T]`.

    As the weight of a loss, with `count_sequences` as its `num_tokens`, it makes GRPO's own mean.
    Tokens that are not own have 0.
    """
    check_mask(mask, sequence)
    length = lengths(mask, sequence)
    return (1 / length.clamp(min=1)).masked_fill(~mask, 0)


def count_sequences(mask: Tensor, sequence: Tensor | None = None) -> Tensor:
    """Return the number of sequences that have an own token, a scalar of 1 or more."""
    check_mask(mask, sequence)
    return (sums(mask.float(), mask, sequence) > 0).sum().clamp(min=1)


def weighted(column: Tensor, weight: Tensor | None, mask: Tensor) -> Tensor:
    """Return w x at own tokens, and 0 without gradient elsewhere, `[B, T]`.

    Raises:
        ValueError: the weight is of another shape, or not finite at an own token.
    """
    (column,) = masked(mask, column)
    if weight is None:
        return column
    check_weight(weight, mask)
    (weight,) = masked(mask, weight.detach())
    return weight.to(column.dtype) * column


def check_weight(weight: Tensor | None, mask: Tensor) -> None:
    """Refuse weights of another shape than the mask, or not finite where it is true.

    Raises:
        ValueError: they are such; None is left out.
    """
    if weight is not None:
        check_numbers("weight", weight)
        check_shape("weight", weight, mask.shape)
        check_finite(mask, weight=weight)


def check_divisor(name: str, divisor: Count) -> None:
    """Refuse divisors that are not one positive number.

    Raises:
        ValueError: it is zero, negative, not finite, or a tensor of another shape than `()`.
    """
    if not isinstance(divisor, Tensor):
        check_positive(name, divisor)
        return
    check_shape(name, divisor, (), ": expected the number of the whole step, a scalar")
    if is_validated(divisor):
        check_positive(name, divisor.item())
