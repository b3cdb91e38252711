"""Numbers of environments of others: networks and buffers take finite ones of float32."""

from __future__ import annotations

from typing import Any

import numpy as np

from bray_core.errors import SpecError

_MOST = float(np.finfo(np.float32).max)
"""Largest number that networks and buffers take."""
_SEVERAL = (
    ": make one number of several in a wrapper; agents with rewards of their own play through "
    "PettingZoo"
)
_ORDINARY = 1e76
"""Sum of squares below which no number is beyond float32."""


def check_reward(reward: Any, path: str) -> None:
    """Refuse a reward that no buffer takes.

    Args:
        reward: What the environment told.
        path: Its name, for messages.

    Raises:
        SpecError: it is no finite number of float32.
    """
    if getattr(reward, "shape", ()) or not _is_finite(reward):
        are_several = isinstance(reward, list | tuple | np.ndarray)
        raise SpecError(
            f"{path}: expected a finite number, got {shown(reward)} (rewards are float32, "
            f"up to {_MOST:.2g}){_SEVERAL if are_several else ''}"
        )


def check_finite(array: Any, path: str) -> None:
    """Refuse an array of floats that has others than finite numbers of float32.

    Args:
        array: What the environment told; a number has an array's methods, too.
        path: Its name, for messages.

    Raises:
        SpecError: one of them is NaN, infinite, or beyond float32.
    """
    if are_ordinary(array):
        return
    numbers = np.asarray(array)
    with np.errstate(over="ignore"):
        wrong = numbers[~np.isfinite(numbers.astype(np.float32))]
    if wrong.size:
        got = "NaN" if np.isnan(wrong[0]) else f"{wrong[0]:.4g}, which float32 has not,"
        raise SpecError(f"{path}: expected numbers, got {got} among them")


def are_ordinary(array: Any) -> bool:
    """Return whether numbers are finite and none is anywhere near the end of float32.

    It is a glance: where it says False, each number is to be looked at.
    """
    return float(np.vdot(array, array)) < _ORDINARY


def shown(value: Any) -> str:
    """Return a value in few words."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"{type(value).__name__} {str(value)[:40]!r}" if value is not None else "None"


def _is_finite(reward: Any) -> bool:
    try:
        return bool(-_MOST <= reward <= _MOST)
    except TypeError:
        return False
