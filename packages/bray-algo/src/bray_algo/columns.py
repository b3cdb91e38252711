"""Columns of a batch: one number per sample, all of one shape; their checks and means.

`valid` (bool, the same shape) says which samples count, None that all do: the others may hold
anything, NaN too, and get no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bray_algo.precision import wide
from bray_algo.validation import check_finite, check_index, check_tensor

Terms = dict[str, Tensor]
"""What a loss is made of, by name: scalars without gradient."""


def check_rank(name: str, tensor: Tensor, letters: str) -> None:
    """Refuse a tensor that is empty or has not one dimension for each letter, such as `N, A`."""
    check_tensor(name, tensor)
    if tensor.ndim != len(letters.split(", ")) or not tensor.numel():
        raise ValueError(
            f"{name}: expected [{letters}], not empty, got shape {tuple(tensor.shape)}"
        )


def check_shape(name: str, tensor: Tensor, shape: Sequence[int], hint: str = "") -> None:
    """Refuse a tensor of another shape: broadcasting would hide the fault."""
    check_tensor(name, tensor)
    if tensor.shape != tuple(shape):
        raise ValueError(f"{name}: expected shape {tuple(shape)}, got {tuple(tensor.shape)}{hint}")


def check_columns(like: Tensor, /, **columns: Tensor | None) -> None:
    """Refuse columns that differ in shape from the first, are empty or no numbers.

    None is left out.
    """
    check_numbers("columns", like)
    if not like.numel():
        raise ValueError(f"expected columns of one sample or more, got shape {tuple(like.shape)}")
    hint = ": flatten time and batch to one dimension N" if like.ndim == 1 else ""
    for name, column in columns.items():
        if column is not None:
            check_numbers(name, column)
            check_shape(name, column, like.shape, hint)


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


def check_action(name: str, action: Tensor, shape: Sequence[int], end: int, hint: str = "") -> None:
    """Refuse discrete actions of another shape, that are no integers, or not within 0 to end − 1.

    A float 0.7 is no action 0, and a bool is most often a mask that took the action's place.
    """
    check_shape(name, action, shape, hint)
    check_index(name, action, end)


def check_flags(name: str, flags: Tensor | None, shape: Sequence[int]) -> None:
    """Refuse flags that are not bool or of another shape; None is left out."""
    if flags is None:
        return
    check_tensor(name, flags)
    if flags.dtype != torch.bool or flags.shape != tuple(shape):
        raise ValueError(
            f"{name}: expected bool {tuple(shape)}, got {flags.dtype} {tuple(flags.shape)}"
        )


def keep(valid: Tensor | None, *columns: Tensor) -> tuple[Tensor, ...]:
    """Return the columns in float32 at least, and zeros, which have no gradient, if not valid."""
    if valid is None:
        return tuple(wide(column) for column in columns)
    return tuple(wide(column).masked_fill(~valid, 0) for column in columns)


def mean(column: Tensor, valid: Tensor | None = None) -> Tensor:
    """Return the mean over the valid samples, 0 if there is none; in float32 at least."""
    column = wide(column)
    if valid is None:
        return column.mean()
    return column.masked_fill(~valid, 0).sum() / valid.sum().clamp(min=1)


def standardised(column: Tensor, valid: Tensor | None = None, epsilon: float = 1e-8) -> Tensor:
    """Return (x − mean) / (σ + ε) over the valid samples, zeros elsewhere, without gradient.

    σ² is the mean square (divided by N, not N − 1): one sample, or several equal ones, give 0 and
    not NaN. Inside, numbers are float64 and centred twice: what rounding leaves of equal rows
    would else be blown up to ±1.
    """
    centred = column.detach().double()
    for _ in range(2):
        centred = centred - mean(centred, valid)
    deviation = mean(centred.square(), valid).sqrt()
    (result,) = keep(valid, (centred / (deviation + epsilon)).to(wide(column).dtype))
    return result


def weighted_mean(column: Tensor, weight: Tensor | None, valid: Tensor | None = None) -> Tensor:
    """Return Σ w ℓ / N over the valid samples, with a weight of 1 if none is given.

    The divisor stays N, as prioritised replay wants it (Schaul et al. 2016, Algorithm 1).
    """
    if weight is not None:
        check_numbers("weight", weight)
        check_shape("weight", weight, column.shape)
        check_finite(valid, weight=weight)
        column = weight.detach() * column
    return mean(column, valid)
