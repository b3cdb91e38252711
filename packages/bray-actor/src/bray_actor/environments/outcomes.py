"""What environments of others return, checked where it comes in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from bray_actor.environments.finite import are_ordinary, check_finite, check_reward, shown
from bray_actor.spaces import check_overflow, may_overflow
from bray_core.errors import SpecError

_STEP = "observation, reward, terminated, truncated, info"
_RESET = "observation, info"


def check_step(outcome: Any) -> None:
    """Refuse what no step returns; observations are looked at where an episode begins.

    Raises:
        SpecError: it is no tuple of five, the reward is no finite number, an end is neither true
            nor false, or the info no dict.
    """
    if type(outcome) is not tuple or len(outcome) != 5:
        _check_parts("step", outcome, _STEP)
    check_reward(outcome[1], "step: reward")
    if type(outcome[2]) is not bool:
        _check_flag(outcome[2], "step: terminated")
    if type(outcome[3]) is not bool:
        _check_flag(outcome[3], "step: truncated")
    if type(outcome[4]) is not dict and not isinstance(outcome[4], Mapping):
        raise SpecError(f"step: info: expected a dict, got {shown(outcome[4])}")


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
        raise SpecError(f"reset: info: expected a dict, got {shown(info)}")
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
            got = sorted(map(str, value)) if isinstance(value, Mapping) else shown(value)
            raise SpecError(f"{path}: expected a dict of {sorted(space.keys())}, got {got}")
        for name, child in space.items():
            check_observation(child, value[name], f"{path}/{name}")
    elif isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple | list) or len(value) != len(space):
            raise SpecError(f"{path}: expected a tuple of {len(space)}, got {shown(value)}")
        for number, child in enumerate(space):
            check_observation(child, value[number], f"{path}[{number}]")
    elif space.shape is not None:
        _check_array(space, value, path)


def at_a_glance(space: Any) -> Callable[[Any], bool]:
    """Return what tells at little cost that an observation is as its space says.

    Where it says False, `check_observation` is to look closely: this is each step's cost.
    """
    if isinstance(space, spaces.Discrete):
        values = range(int(space.start), int(space.start + space.n))
        return lambda seen: type(seen) is int and seen in values
    if isinstance(space, spaces.Dict):
        named = [(name, at_a_glance(child)) for name, child in space.items()]
        return lambda seen: (
            type(seen) is dict
            and all(name in seen and is_fit(seen[name]) for name, is_fit in named)
        )
    if isinstance(space, spaces.Tuple):
        each, count = [at_a_glance(child) for child in space], len(space)
        return lambda seen: (
            type(seen) is tuple
            and len(seen) == count
            and all(is_fit(one) for is_fit, one in zip(each, seen, strict=True))
        )
    if not isinstance(space, spaces.Box | spaces.MultiBinary) or not space.shape:
        return lambda seen: False
    return _array_at_a_glance(space.shape, space.dtype)


def _array_at_a_glance(shape: tuple[int, ...], dtype: Any) -> Callable[[Any], bool]:
    known = map(np.dtype, "?" + np.typecodes["AllInteger"] + "efd")
    can_be_cast = (one for one in known if np.can_cast(one, dtype, "same_kind"))
    fit = {one: one.kind == "f" for one in can_be_cast if not may_overflow(one, dtype)}

    def is_fit(seen: Any) -> bool:
        if type(seen) is not np.ndarray or seen.shape != shape:
            return False
        is_float = fit.get(seen.dtype)
        return are_ordinary(seen) if is_float else is_float is not None

    return is_fit


def _check_array(space: Any, value: Any, path: str) -> None:
    try:
        array = np.asarray(value)
    except ValueError:  # a list of lists of different lengths
        array = np.asarray(None)
    if type(value) is int and space.dtype.kind in "iu":
        array = _of_dtype(value, space.dtype, array)
    if array.dtype.kind not in "biuf" or array.shape != tuple(space.shape):
        raise SpecError(
            f"{path}: expected numbers of shape {tuple(space.shape)}, got {shown(value)}"
        )
    if not np.can_cast(array.dtype, space.dtype, "same_kind"):
        raise SpecError(
            f"{path}: expected {space.dtype} as the space says, got {array.dtype}: return it as "
            f"{space.dtype}, or let the space say {array.dtype}"
        )
    if array.dtype.kind == "f":
        check_finite(array, path)
    if may_overflow(array.dtype, space.dtype):
        check_overflow(array, space.dtype, path)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        _check_category(space, array, path)


def _of_dtype(value: int, dtype: Any, otherwise: Any) -> Any:
    """Return a number of Python's as an array of a dtype, where it can be one."""
    bounds = np.iinfo(dtype)
    return np.asarray(value, dtype) if bounds.min <= value <= bounds.max else otherwise


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


def _check_flag(value: Any, path: str) -> None:
    """Refuse an end that numpy would make something of: None is no end to it, any word is one."""
    if getattr(value, "shape", ()) or isinstance(value, str | bytes) or value not in (0, 1):
        raise SpecError(f"{path}: expected True or False, got {shown(value)}")


def _check_parts(call: str, outcome: Any, parts: str) -> None:
    size = parts.count(",") + 1
    if isinstance(outcome, tuple) and len(outcome) == size:
        return
    cure = ""
    if call == "step" and isinstance(outcome, tuple) and len(outcome) == size - 1:
        cure = ": what Gym called done is `terminated`, or `truncated` where time was up"
    raise SpecError(f"{call}: expected ({parts}), got {shown(outcome)}{cure}")
