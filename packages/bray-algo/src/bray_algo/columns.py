"""Columns of a batch: one number per sample, all of one shape; their checks and means.

`valid` (bool, the same shape) says which samples count, None that all do: the others may hold
anything, NaN too, and get no gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

Terms = dict[str, Tensor]
"""What a loss is made of, by name: scalars without gradient."""


def check_shape(name: str, tensor: Tensor, shape: torch.Size, hint: str = "") -> None:
    """Refuse a tensor of another shape."""
    if tensor.shape != shape:
        raise ValueError(f"{name}: expected shape {tuple(shape)}, got {tuple(tensor.shape)}{hint}")


def check_columns(like: Tensor, **columns: Tensor | None) -> None:
    """Refuse columns that differ in shape from the first or are empty; None is left out."""
    if not like.numel():
        raise ValueError(f"expected columns of one sample or more, got shape {tuple(like.shape)}")
    for name, column in columns.items():
        if column is not None:
            hint = ": flatten time and batch to one dimension N" if like.ndim == 1 else ""
            check_shape(name, column, like.shape, hint)


def check_valid(valid: Tensor | None, shape: torch.Size, name: str = "valid") -> None:
    """Refuse a mask that is not bool or of another shape."""
    if valid is None:
        return
    check_shape(name, valid, shape)
    if valid.dtype != torch.bool:
        raise ValueError(f"{name}: expected bool, got {valid.dtype}")


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


def mean(column: Tensor, valid: Tensor | None) -> Tensor:
    """Return the mean over the valid samples, 0 if there is none."""
    if valid is None:
        return column.mean()
    return column.masked_fill(~valid, 0).sum() / valid.sum().clamp(min=1)
