"""Checks of the numbers that set a function up: one for each kind of range; NaN is in none."""

from __future__ import annotations

import math
from typing import Any


def check_number(name: str, number: float) -> None:
    """Refuse NaN, ±inf, and what is no number."""
    if not (_is_number(number) and -math.inf < number < math.inf):
        raise ValueError(f"{name}: expected a finite number, got {number!r}")


def check_positive(name: str, number: float) -> None:
    """Refuse zero, negative numbers, inf and NaN."""
    if not (_is_number(number) and 0 < number < math.inf):
        raise ValueError(f"{name}: expected a positive number, got {number!r}")


def check_limit(name: str, number: float) -> None:
    """Refuse limits that are not positive; `math.inf` is no limit."""
    if not (_is_number(number) and number > 0):
        raise ValueError(f"{name}: expected a positive number, got {number!r}; inf is no limit")


def check_not_negative(name: str, number: float) -> None:
    """Refuse negative numbers, inf and NaN."""
    if not (_is_number(number) and 0 <= number < math.inf):
        raise ValueError(f"{name}: expected 0 or more, got {number!r}")


def check_fraction(name: str, number: float) -> None:
    """Refuse what is not from 0 to 1."""
    if not (_is_number(number) and 0.0 <= number <= 1.0):
        raise ValueError(f"{name}: expected 0 to 1, got {number!r}")


def check_confidence(name: str, number: float) -> None:
    """Refuse what is not between 0 and 1, both excluded."""
    if not (_is_number(number) and 0 < number < 1):
        raise ValueError(f"{name}: expected between 0 and 1, got {number!r}")


def check_count(name: str, number: int, least: int = 1) -> None:
    """Refuse what is no whole number from `least` on."""
    if not hasattr(number, "__index__"):
        raise ValueError(f"{name}: expected a whole number, got {number!r}")
    if not number >= least:
        raise ValueError(f"{name}: expected {least} or more, got {number!r}")


def _is_number(number: Any) -> bool:
    """Return whether Python's and numpy's comparisons know it; no string, list or None."""
    return hasattr(number, "__float__")
