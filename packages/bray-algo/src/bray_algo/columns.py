"""Columns of a batch: one number per sample, all of one shape; their checks and means.

`valid` (bool, the same shape) says which samples count, None that all do: the others may hold
anything, NaN too, and get no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bray_algo.validation import check_finite

Terms = dict[str, Tensor]
"""What a loss is made of, by name: scalars without gradient."""


def check_rank(name: str, tensor: Tensor, letters: str) -> None:
    """Refuse a tensor that is empty or has not one dimension for each letter, such as `N, A`."""
    if tensor.ndim != len(letters.split(", ")) or not tensor.numel():
        raise ValueError(
            f"{name}: expected [{letters}], not empty, got shape {tuple(tensor.shape)}"
        )


def check_shape(name: str, tensor: Tensor, shape: Sequence[int], hint: str = "") -> None:
    """Refuse a tensor of another shape: broadcasting would hide the fault."""
    if tensor.shape != tuple(shape):
        raise ValueError(f"{name}: expected shape {tuple(shape)}, got {tuple(tensor.shape)}{hint}")


def check_columns(like: Tensor, **columns: Tensor | None) -> None:
    """Refuse columns that differ in shape from the first or are empty; None is left out."""
    if not like.numel():
        raise ValueError(f"expected columns of one sample or more, got shape {tuple(like.shape)}")
    for name, column in columns.items():
        if column is not None:
            hint = ": flatten time and batch to one dimension N" if like.ndim == 1 else ""
            check_shape(name, column, like.shape, hint)


def check_flags(name: str, flags: Tensor | None, shape: Sequence[int]) -> None:
    """Refuse flags that are not bool or of another shape; None is left out."""
    if flags is not None and (flags.dtype != torch.bool or flags.shape != tuple(shape)):
        raise ValueError(
            f"{name}: expected bool {tuple(shape)}, got {flags.dtype} {tuple(flags.shape)}"
        )


def check_positive(name: str, number: float) -> None:
    """Refuse zero, negative numbers and NaN."""
    if not number > 0:
        raise ValueError(f"{name}: expected a positive number, got {number}")


def check_fraction(name: str, number: float) -> None:
    """Refuse what is not from 0 to 1."""
    if not 0.0 <= number <= 1.0:
        raise ValueError(f"{name}: expected 0 to 1, got {number}")


def keep(valid: Tensor | None, *columns: Tensor) -> tuple[Tensor, ...]:
    """Return the columns with zeros, which have no gradient, where they are not valid."""
    if valid is None:
        return columns
    return tuple(column.masked_fill(~valid, 0) for column in columns)


def mean(column: Tensor, valid: Tensor | None = None) -> Tensor:
    """Return the mean over the valid samples, 0 if there is none."""
    if valid is None:
        return column.mean()
    return column.masked_fill(~valid, 0).sum() / valid.sum().clamp(min=1)


def weighted_mean(column: Tensor, weight: Tensor | None, valid: Tensor | None = None) -> Tensor:
    """Return Σ w ℓ / N over the valid samples, with a weight of 1 if none is given.

    The divisor stays N, as prioritised replay wants it (Schaul et al. 2016, Algorithm 1).
    """
    if weight is not None:
        check_shape("weight", weight, column.shape)
        check_finite(valid, weight=weight)
        column = weight.detach() * column
    return mean(column, valid)
