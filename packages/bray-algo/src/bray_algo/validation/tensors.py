"""Checks of a tensor's kind, shape and type; they read no values."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bray_algo.validation.switch import is_traced


def check_tensor(name: str, value: object) -> None:
    """Refuse arrays, lists and numbers in the place of a tensor.

    Raises:
        ValueError: it is none; the message names the argument and what came.
    """
    if not isinstance(value, Tensor):
        kind = type(value)
        raise ValueError(
            f"{name}: expected a torch tensor, got {kind.__module__}.{kind.__qualname__}: "
            "convert it by torch.as_tensor"
        )


def check_rank(name: str, tensor: Tensor, letters: str) -> None:
    """Refuse a tensor that is empty, or whose dimensions are not as many as the letters.

    Args:
        name: Name of the argument, for the message.
        tensor: What was given.
        letters: One letter for each dimension, such as `N, A`.
    """
    check_tensor(name, tensor)
    if tensor.ndim != len(letters.split(", ")) or not tensor.numel():
        raise ValueError(
            f"{name}: expected [{letters}], not empty, got shape {tuple(tensor.shape)}"
        )


def check_shape(name: str, tensor: Tensor, shape: Sequence[int], hint: str = "") -> None:
    """Refuse a tensor of another shape: broadcasting would hide the fault."""
    check_tensor(name, tensor)
    if not is_traced() and tensor.shape != tuple(shape):
        raise ValueError(f"{name}: expected shape {tuple(shape)}, got {tuple(tensor.shape)}{hint}")


def check_columns(like: Tensor, /, **columns: Tensor | None) -> None:
    """Refuse columns that are empty, hold no numbers, or differ in shape from the first.

    A column of None is left out.
    """
    given = [like, *(column for column in columns.values() if column is not None)]
    if all(map(_is_column, given)) and all(column.shape == like.shape for column in given):
        return  # nearly always
    check_numbers("columns", like)
    if not like.numel():
        raise ValueError(f"expected columns of one sample or more, got shape {tuple(like.shape)}")
    hint = ": flatten time and batch to one dimension N" if like.ndim == 1 else ""
    for name, column in columns.items():
        if column is not None:
            check_numbers(name, column)
            check_shape(name, column, like.shape, hint)


def _is_column(column: object) -> bool:
    is_float = isinstance(column, Tensor) and column.dtype.is_floating_point
    return is_float and bool(column.numel())  # type: ignore[attr-defined]


def check_integers(name: str, tensor: Tensor) -> None:
    """Refuse what is no tensor of integers; bools are not integers here.

    Raises:
        ValueError: it is not; the message names the argument and its type.
    """
    check_tensor(name, tensor)
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool:
        raise ValueError(f"{name}: expected integers, got {tensor.dtype}")


def check_numbers(name: str, tensor: Tensor) -> None:
    """Refuse what is no tensor of real numbers, such as flags in the place of probabilities."""
    check_tensor(name, tensor)
    if tensor.dtype == torch.bool or tensor.dtype.is_complex:
        raise ValueError(f"{name}: expected real numbers, got {tensor.dtype}")


def check_floats(name: str, tensor: Tensor) -> None:
    """Refuse what is no tensor of floats, such as actions in the place of logits."""
    check_tensor(name, tensor)
    if not tensor.dtype.is_floating_point:
        raise ValueError(f"{name}: expected floats, got {tensor.dtype}")


def check_flags(name: str, flags: Tensor | None, shape: Sequence[int]) -> None:
    """Refuse flags that are not bool or of another shape; None is left out."""
    if flags is None or is_traced():
        return
    check_tensor(name, flags)
    if flags.dtype != torch.bool or flags.shape != tuple(shape):
        raise ValueError(
            f"{name}: expected bool {tuple(shape)}, got {flags.dtype} {tuple(flags.shape)}"
        )
