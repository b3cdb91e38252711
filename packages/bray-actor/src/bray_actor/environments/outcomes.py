"""What environments of others return, checked where it comes in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from bray_core.errors import SpecError

_STEP = "observation, reward, terminated, truncated, info"
_RESET = "observation, info"


def check_step(outcome: Any) -> None:
    """Refuse what no step returns; observations are looked at where an episode begins.

    Raises:
        SpecError: it is no tuple of five, the reward is no finite number, or the info no dict.
    """
    if type(outcome) is not tuple or len(outcome) != 5:
        _check_parts("step", outcome, _STEP)
    reward = outcome[1]
    if getattr(reward, "shape", ()) or not _is_finite(reward):
        raise SpecError(f"step: reward: expected a finite number, got {_shown(reward)}")
    if type(outcome[4]) is not dict and not isinstance(outcome[4], Mapping):
        raise SpecError(f"step: info: expected a dict, got {_shown(outcome[4])}")


def check_reset(space: Any, outcome: Any) -> None:
    """Refuse what no reset returns.

    Args:
        space: Gymnasium's space of observations.
        outcome: What `reset` returned.

    Raises:
        SpecError: it is no tuple of two, or the observation is none of such a space: another shape,
            other names, a number that is NaN, or a value that a category does not have.
    """
    _check_parts("reset", outcome, _RESET)
    observation, info = outcome
    if not isinstance(info, Mapping):
        raise SpecError(f"reset: info: expected a dict, got {_shown(info)}")
    check_observation(space, observation, "reset: observation")


def check_observation(space: Any, value: Any, path: str) -> None:
    """Refuse an observation of another form than its space says.

    Args:
        space: Gymnasium's space, or a part of it.
        value: What was observed of it.
        path: Its name, for messages.

    Raises:
        SpecError: see `check_reset`.
    """
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping) or not set(space.keys()) <= set(value):
            got = sorted(map(str, value)) if isinstance(value, Mapping) else _shown(value)
            raise SpecError(f"{path}: expected a dict of {sorted(space.keys())}, got {got}")
        for name, child in space.items():
            check_observation(child, value[name], f"{path}/{name}")
    elif isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple | list) or len(value) != len(space):
            raise SpecError(f"{path}: expected a tuple of {len(space)}, got {_shown(value)}")
        for number, child in enumerate(space):
            check_observation(child, value[number], f"{path}[{number}]")
    elif space.shape is not None:
        _check_array(space, value, path)


def _check_array(space: Any, value: Any, path: str) -> None:
    try:
        array = np.asarray(value)
    except ValueError:  # a list of lists of different lengths
        array = np.asarray(None)
    if array.dtype.kind not in "biuf" or array.shape != tuple(space.shape):
        raise SpecError(
            f"{path}: expected numbers of shape {tuple(space.shape)}, got {_shown(value)}"
        )
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise SpecError(f"{path}: expected numbers, got NaN among them")
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        _check_category(space, array, path)


def _check_category(space: Any, array: Any, path: str) -> None:
    """Refuse values that are none of a category's: a network would take them for others."""
    least = np.asarray(space.start)
    most = least + (space.n if isinstance(space, spaces.Discrete) else space.nvec) - 1
    wrong = (array < least) | (array > most)
    if wrong.any():
        one = int(np.argmax(wrong))
        bounds = [np.broadcast_to(side, array.shape).reshape(-1)[one] for side in (least, most)]
        raise SpecError(
            f"{path}: expected whole numbers from {bounds[0]} to {bounds[1]}, as {space} has them, "
            f"got {array.reshape(-1)[one]}"
        )


def _check_parts(call: str, outcome: Any, parts: str) -> None:
    size = parts.count(",") + 1
    if isinstance(outcome, tuple) and len(outcome) == size:
        return
    cure = ""
    if call == "step" and isinstance(outcome, tuple) and len(outcome) == size - 1:
        cure = ": what Gym called done is `terminated`, or `truncated` where time was up"
    raise SpecError(f"{call}: expected ({parts}), got {_shown(outcome)}{cure}")


def _is_finite(reward: Any) -> bool:
    try:
        return math.isfinite(reward)
    except TypeError:
        return False


def _shown(value: Any) -> str:
    """Return a value in few words."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"{type(value).__name__} {str(value)[:40]!r}" if value is not None else "None"
