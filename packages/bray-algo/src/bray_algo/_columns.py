"""Checks of the columns and numbers that the value-based losses take, and their weighted mean."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Terms = dict[str, Tensor]
"""What a loss is made of, by name: scalars without gradient."""


def check_rank(name: str, tensor: Tensor, letters: str) -> None:
    """Refuse a tensor that is empty or has not one dimension for each letter, such as `[N, A]`."""
    if tensor.ndim != len(letters.split(", ")) or not tensor.numel():
        raise ValueError(
            f"{name}: expected [{letters}], not empty, got shape {tuple(tensor.shape)}"
        )


def check_shape(name: str, tensor: Tensor, shape: Sequence[int]) -> None:
    """Refuse a tensor of another shape: broadcasting would hide the fault."""
    if tensor.shape != tuple(shape):
        raise ValueError(f"{name}: expected shape {tuple(shape)}, got {tuple(tensor.shape)}")


def check_positive(name: str, number: float) -> None:
    """Refuse a number that is not positive, NaN too."""
    if not number > 0:
        raise ValueError(f"{name}: expected a positive number, got {number}")


def check_fraction(name: str, number: float) -> None:
    """Refuse a number outside 0 to 1, NaN too."""
    if not 0.0 <= number <= 1.0:
        raise ValueError(f"{name}: expected 0 to 1, got {number}")


def is_readable(tensor: Tensor) -> bool:
    """Return whether values may be checked: on a GPU that would wait, compiled it would fail."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def weighted_mean(rows: Tensor, weight: Tensor | None) -> Tensor:
    """Return the mean of rows `[N]`, each times its weight `[N]` if given: Σ w ℓ / N.

    The divisor stays N, as prioritised replay wants it (Schaul et al. 2016, Algorithm 1).
    """
    if weight is None:
        return rows.mean()
    check_shape("weight", weight, rows.shape)
    return (weight.detach() * rows).mean()
