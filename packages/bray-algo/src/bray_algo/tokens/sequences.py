"""Sums over sequences of tokens, one a row or several packed into a row.

`mask` and `sequence` are those of `bray_algo.tokens`. Sequences are numbered from 0 over the whole
batch; tokens that do not count may have any number of one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bray_algo.losses.reductions import masked
from bray_algo.precision import wide
from bray_algo.validation.scalars import check_count
from bray_algo.validation.tensors import (
    check_flags,
    check_numbers,
    check_rank,
    check_shape,
    check_tensor,
)
from bray_algo.validation.values import check_finite, check_index


def check_mask(mask: Tensor, sequence: Tensor | None = None, end: int | None = None) -> None:
    """Refuse masks that are not bool `[B, T]`, and sequences of another shape or out of range.

    Args:
        mask: What was given as the policy's own tokens.
        sequence: Numbers of the sequences, if there are any.
        end: Number of sequences; None is the number of tokens, B·T.

    Raises:
        ValueError: one is not as expected; the message names it.
    """
    check_rank("mask", mask, "B, T")
    check_flags("mask", mask, mask.shape)
    if sequence is not None:
        check_shape("sequence", sequence, mask.shape)
        check_index("sequence", sequence, mask.numel() if end is None else end)


def sums(
    column: Tensor,
    mask: Tensor,
    sequence: Tensor | None = None,
    *,
    num_sequences: int | None = None,
) -> Tensor:
    """Return the sum of the own tokens of each sequence, `[S]`; in float32 at least.

    Args:
        column: A number for each token, `[B, T]`, such as log probabilities.
        mask: The policy's own tokens, bool `[B, T]`.
        sequence: Number of each token's sequence, `[B, T]`; None is one sequence a row.
        num_sequences: S where `sequence` is given; None is B·T, most of which are then empty and
            hold 0.

    Raises:
        ValueError: shapes or types are not these, a number is not finite, or a sequence's number
            is not below S.
    """
    check_numbers("column", column)
    if num_sequences is not None:
        check_count("num_sequences", num_sequences)
    check_mask(mask, sequence, num_sequences)
    check_shape("column", column, mask.shape)
    check_finite(mask, column=column)
    (column,) = masked(mask, column)
    if sequence is None:
        return column.sum(-1)
    size = mask.numel() if num_sequences is None else num_sequences
    empty = torch.zeros(size, dtype=column.dtype, device=column.device)
    return empty.scatter_add(0, sequence.flatten().long(), column.flatten())


def spread(values: Tensor, mask: Tensor, sequence: Tensor | None = None) -> Tensor:
    """Return each sequence's number at each of its own tokens, 0 elsewhere, `[B, T]`.

    Args:
        values: One number a sequence, `[S]`, such as advantages.
        mask: The policy's own tokens, bool `[B, T]`.
        sequence: Number of each token's sequence, `[B, T]`; None is one sequence a row, S = B.

    Raises:
        ValueError: shapes or types are not these, a number is not finite, or a sequence's number
            is not below S.
    """
    check_rank("values", values, "S")
    check_numbers("values", values)
    check_finite(values=values)
    check_mask(mask, sequence, len(values))
    values = wide(values)
    if sequence is None:
        check_shape("values", values, mask.shape[:1], ": give one a row, or `sequence`")
        return values[:, None].expand(mask.shape).masked_fill(~mask, 0)
    return values[sequence.long()].masked_fill(~mask, 0)


def lengths(mask: Tensor, sequence: Tensor | None = None) -> Tensor:
    """Return the number of own tokens of each token's sequence, float64 `[B, T]`, 0 elsewhere."""
    check_tensor("mask", mask)
    ones = torch.ones(mask.shape, dtype=torch.float64, device=mask.device)
    return spread(sums(ones, mask, sequence), mask, sequence)


def ends(mask: Tensor, sequence: Tensor | None = None) -> Tensor:
    """Return which tokens are the last own ones of their sequence, bool `[B, T]`."""
    check_mask(mask, sequence)
    after = to_go(torch.ones(mask.shape, device=mask.device), mask, sequence)
    return mask & (after.round() == 1)


def to_go(column: Tensor, mask: Tensor, sequence: Tensor | None = None) -> Tensor:
    """Return the sum over the own tokens from each one to its sequence's end, `[B, T]`.

    It is the undiscounted return of rewards, and 0 where a token is not own.

    Args:
        column: A number for each token, `[B, T]`.
        mask: The policy's own tokens, bool `[B, T]`.
        sequence: Number of each token's sequence, `[B, T]`, in one piece within a row; None is one
            sequence a row.

    Raises:
        ValueError: shapes or types are not these, or a number is not finite.
    """
    check_numbers("column", column)
    total = spread(sums(column.double(), mask, sequence), mask, sequence)
    (own,) = masked(mask, column.double())
    before = own.cumsum(-1) - own
    if sequence is not None:
        before = before - _before_the_sequence(before, sequence)
    return (total - before).masked_fill(~mask, 0).to(masked(mask, column)[0].dtype)


def _before_the_sequence(before: Tensor, sequence: Tensor) -> Tensor:
    """Return what the sum along the row was where each token's sequence begins, `[B, T]`."""
    flat, size = sequence.flatten().long(), sequence.numel()
    place = torch.arange(size, device=sequence.device)
    first = torch.full((size,), size - 1, device=sequence.device)
    first = first.scatter_reduce(0, flat, place, "amin")
    return before.flatten()[first[flat]].view(before.shape)
