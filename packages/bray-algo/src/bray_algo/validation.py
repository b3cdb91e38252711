"""The switch of the checks that read values: numbers that are not finite, rows of no legal action.

Ranks, shapes and types are always checked, for that costs nothing. Values are read while the switch
is on, as it is unless Python runs with -O; never on a GPU, which would have to wait, nor while
compiling or exporting. Padding, and what else a function does not read, may hold anything.
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
        >>> from bray_algo import a2c
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
    if not is_suspect(column):
        return ""
    bad = ~column.isfinite() if valid is None else ~column.isfinite() & valid
    if not bad.any():
        return ""
    place = bad.nonzero()[0]
    return f"{column.expand_as(bad)[tuple(place)].item()} at {place.tolist()}"
