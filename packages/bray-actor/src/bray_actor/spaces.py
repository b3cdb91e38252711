"""Gymnasium spaces as nested arrays, both ways. Imports gymnasium when used."""

from __future__ import annotations

from typing import Any

import numpy as np

from bray_core.config import closest
from bray_core.errors import ConfigError, MissingExtraError
from bray_core.nested import ArraySpec, Nested

ALIASES = {"cartpole": "CartPole-v1"}
"""Short names that `bray play` and `bray train` know."""


def import_gymnasium() -> Any:
    """Return the module.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import gymnasium
    except ImportError:
        raise MissingExtraError("playing Gymnasium environments", "bray-actor", "gym") from None
    return gymnasium


def resolve(environment: str) -> str:
    """Return the registered id of an environment's id or short name.

    Raises:
        ConfigError: unknown; names the closest.
    """
    gymnasium = import_gymnasium()
    resolved = ALIASES.get(environment, environment)
    if resolved not in gymnasium.registry:
        known = [*gymnasium.registry, *ALIASES]
        raise ConfigError(f"environment: unknown {environment!r}{closest(environment, known)}")
    return resolved


def spec_of(space: Any) -> Nested:
    """Return the nested `ArraySpec` of a space's values.

    Raises:
        ConfigError: a kind of space that has no fixed arrays; names it.
    """
    spaces = import_gymnasium().spaces
    if isinstance(space, spaces.Dict):
        return {name: spec_of(child) for name, child in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(spec_of(child) for child in space)
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        return ArraySpec(np.dtype(space.dtype), tuple(space.shape))
    if isinstance(space, spaces.Discrete):
        return ArraySpec(np.dtype(np.int64), ())
    raise ConfigError(
        "space: expected Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple, "
        f"got {type(space).__name__}"
    )


def to_arrays(spec: Nested, value: Any) -> Nested:
    """Return a space's value as arrays of its spec."""
    if isinstance(spec, dict):
        return {name: to_arrays(child, value[name]) for name, child in spec.items()}
    if isinstance(spec, tuple):
        return [to_arrays(child, v) for child, v in zip(spec, value, strict=True)]
    return np.asarray(value, spec.dtype)


def to_action(space: Any, value: Nested) -> Any:
    """Return an actor's action as a value of the action space.

    Raises:
        ConfigError: the space does not contain it.
    """
    spaces = import_gymnasium().spaces
    if isinstance(space, spaces.Discrete):
        action: Any = int(value)
    elif isinstance(space, spaces.Box):
        action = np.clip(np.asarray(value, space.dtype), space.low, space.high)
    else:
        action = np.asarray(value, space.dtype)
    if not space.contains(action):
        raise ConfigError(f"action: expected one of {space}, got {value!r}")
    return action
