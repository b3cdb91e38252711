"""Checking that a word is one of several, and finding the nearest of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from bray_core.errors import ConfigError

_MAX_NAME = 100
"""Longest name that is compared with others: the time grows with the square of its length."""


def closest(name: str, allowed: Iterable[str]) -> str:
    """Return `, did you mean 'x'?` for the allowed name nearest to `name`, or nothing."""
    if len(name) > _MAX_NAME:
        return ""
    near = difflib.get_close_matches(name, list(allowed), n=1, cutoff=0.5)
    return f", did you mean {near[0]!r}?" if near else ""


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Refuse a value that is none of the choices.

    Raises:
        ConfigError: Names the argument, the choices and the nearest of them.
    """
    choices = list(choices)
    if value not in choices:
        raise ConfigError(
            f"{name}: expected one of {', '.join(choices)}, got {value!r}"
            f"{closest(str(value), choices)}"
        )
