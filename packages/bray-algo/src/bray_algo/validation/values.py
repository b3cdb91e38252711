"""Checks that read the values of tensors, while `validation`'s switch is on."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from bray_algo.validation.switch import is_validated
from bray_algo.validation.tensors import check_integers, check_shape


def check_index(name: str, index: Tensor, end: int) -> None:
    """Refuse indices that are no integers, or not within 0 to end − 1.

    Raises:
        ValueError: an index is neither; the message names the argument, its type or its range.
    """
    check_integers(name, index)
    if is_validated(index) and index.numel():
        least, greatest = (int(bound) for bound in index.long().aminmax())
        if least < 0 or greatest >= end:
            raise ValueError(f"{name}: expected 0 to {end - 1}, got {least} to {greatest}")


def check_action(name: str, action: Tensor, shape: Sequence[int], end: int, hint: str = "") -> None:
    """Refuse discrete actions of another shape, no integers, or not within 0 to end − 1.

    A float 0.7 is no action 0, and a bool is most often a mask that took the action's place.
    """
    check_shape(name, action, shape, hint)
    check_index(name, action, end)


def check_within(least: float, greatest: float, **columns: Tensor) -> None:
    """Refuse numbers below `least` or above `greatest`, and NaN.

    Raises:
        ValueError: a number is; the message names the column and its range.
    """
    for name, column in columns.items():
        if not is_validated(column) or not column.numel():
            continue
        low, high = (float(bound) for bound in column.detach().aminmax())
        if not (least <= low and high <= greatest):
            raise ValueError(f"{name}: expected {least} to {greatest}, got {low} to {high}")


def check_bounds(low: Tensor | float, high: Tensor | float) -> None:
    """Refuse bounds (numbers or tensors) where low is not below high, or one is not finite.

    Raises:
        ValueError: they are; the message tells both.
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
        ValueError: one is not; the message names the column and the place of the first.
    """
    for name, column in columns.items():
        if column is not None and (bad := _first_bad(column, valid)):
            raise ValueError(
                f"{name}: expected finite numbers, got {bad} in shape {tuple(column.shape)}"
            )


def check_logits(valid: Tensor | None = None, /, **logits: Tensor) -> None:
    """Refuse logits `[…, A]` of rows without a legal action (all −inf), and with NaN or +inf.

    The greatest logit of a row tells all: it is NaN if one is, and −inf if all are.

    Raises:
        ValueError: a row is such; the message names the logits and the place of the first.
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
