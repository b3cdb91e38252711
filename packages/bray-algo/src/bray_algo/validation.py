"""What functions check, and the switch of the checks that read the values of tensors.

The rule of the whole package, in two halves:

- always: that tensors are tensors, their ranks, shapes and types (actions are integers, flags are
  bool), and that plain numbers (γ, ε, clips, coefficients, temperatures) lie in their range. That
  costs less than a microsecond each;
- while the switch is on, as it is unless Python runs with -O, and on a CPU alone, outside of
  `torch.compile` and exports: the values of tensors. Numbers that count are finite, rows have a
  legal action, actions exist, a Beta's lie within 0 and 1. On a GPU the host would have to wait,
  and compiled code cannot branch on a value.

Padding, and what else a function does not read, may hold anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_enabled = __debug__


def set_validation(enabled: bool) -> None:
    """Turn the checks on or off, for all threads of the process.

    Off, what is not finite goes through into the results; that saves some microseconds a tensor.
    """
    global _enabled
    _enabled = enabled


@contextmanager
def validating(enabled: bool) -> Iterator[None]:
    """Turn the checks on or off within a `with`, for all threads of the process.

    Examples:
        >>> from bray_algo.losses import a2c
        >>> nan = torch.tensor([torch.nan])
        >>> with validating(False):
        ...     a2c.loss(nan, nan, nan, nan, nan)[0]
        tensor(nan)
    """
    before = _enabled
    set_validation(enabled)
    try:
        yield
    finally:
        set_validation(before)


def is_validated(tensor: Tensor) -> bool:
    """Return whether this tensor's values are to be checked."""
    return _enabled and is_readable(tensor)


def is_readable(tensor: Tensor) -> bool:
    """Return whether values may be read: on a GPU that would wait, compiled it would fail."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def check_tensor(name: str, value: object) -> None:
    """Refuse arrays, lists and numbers in the place of a tensor.

    Raises:
        ValueError: with the name of the argument and what it is.
    """
    if not isinstance(value, Tensor):
        kind = type(value)
        raise ValueError(
            f"{name}: expected a torch tensor, got {kind.__module__}.{kind.__qualname__}: "
            "convert it by torch.as_tensor"
        )


def check_integers(name: str, tensor: Tensor) -> None:
    """Refuse what is no tensor of integers; flags are none.

    Raises:
        ValueError: with the name of the argument and its type.
    """
    check_tensor(name, tensor)
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool:
        raise ValueError(f"{name}: expected integers, got {tensor.dtype}")


def check_index(name: str, index: Tensor, end: int) -> None:
    """Refuse what are no integers, or not within 0 to end − 1.

    Raises:
        ValueError: with the name of the argument, and its type or its range.
    """
    check_integers(name, index)
    if is_validated(index) and index.numel():
        least, greatest = (int(bound) for bound in index.long().aminmax())
        if least < 0 or greatest >= end:
            raise ValueError(f"{name}: expected 0 to {end - 1}, got {least} to {greatest}")


def check_within(least: float, greatest: float, **columns: Tensor) -> None:
    """Refuse numbers below `least` or above `greatest`, and NaN.

    Raises:
        ValueError: with the name of the column and its range.
    """
    for name, column in columns.items():
        if not is_validated(column) or not column.numel():
            continue
        low, high = (float(bound) for bound in column.detach().aminmax())
        if not (least <= low and high <= greatest):
            raise ValueError(f"{name}: expected {least} to {greatest}, got {low} to {high}")


def check_bounds(low: Tensor | float, high: Tensor | float) -> None:
    """Refuse bounds, numbers or tensors, of which low is not below high, or one is not finite.

    Raises:
        ValueError: with both.
    """
    for bound in (low, high):
        if isinstance(bound, Tensor) and not is_validated(bound):
            return
    ordered = (low > -math.inf) & (low < high) & (high < math.inf)
    if not (bool(ordered.all()) if isinstance(ordered, Tensor) else ordered):
        raise ValueError(
            f"low, high: expected finite numbers, low below high, got {_told(low)}, {_told(high)}"
        )


def check_finite(valid: Tensor | None = None, /, **columns: Tensor | None) -> None:
    """Refuse numbers that are not finite where `valid` (bool; it broadcasts) says that they count.

    Raises:
        ValueError: with the name of the column and the place of the first such number.
    """
    for name, column in columns.items():
        if column is not None and (bad := _first_bad(column, valid)):
            raise ValueError(
                f"{name}: expected finite numbers, got {bad} in shape {tuple(column.shape)}"
            )


def check_logits(valid: Tensor | None = None, /, **logits: Tensor) -> None:
    """Refuse logits `[…, A]` of rows without a legal action (all −inf), and with NaN or +inf.

    A row's greatest logit tells: NaN if there is one, −inf if all are.

    Raises:
        ValueError: with the name of the logits and the place of the first such row.
    """
    for name, rows in logits.items():
        if bad := is_validated(rows) and _first_bad(rows.amax(-1), valid):
            raise ValueError(
                f"{name}: expected rows with a legal action, NaN and +inf nowhere, got a row whose "
                f"greatest logit is {bad} in shape {tuple(rows.shape)}"
            )


def is_suspect(column: Tensor) -> bool:
    """Return whether the values are to be checked and some may not be finite, in one pass.

    Their sum is finite only if all are; it may overflow, which is a false alarm.
    """
    return is_validated(column) and not math.isfinite(column.detach().sum())


def _first_bad(column: Tensor, valid: Tensor | None) -> str:
    """Return the first number that is not finite and its place, empty if there is none."""
    if not column.dtype.is_floating_point or not is_suspect(column):
        return ""
    bad = ~column.isfinite() if valid is None else ~column.isfinite() & valid
    if not bad.any():
        return ""
    place = bad.nonzero()[0]
    return f"{column.expand_as(bad)[tuple(place)].item()} at {place.tolist()}"


def _told(bound: Tensor | float) -> object:
    return bound.tolist() if isinstance(bound, Tensor) else bound
