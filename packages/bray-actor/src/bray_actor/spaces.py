"""Gymnasium spaces as nested arrays, both ways. Imports gymnasium when used.

`Discrete` and `MultiDiscrete` values are numbered from 0 on the wire, wherever the space starts.
"""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec
from typing import Any

import numpy as np

from bray_core import nested
from bray_core.errors import ConfigError, MissingExtraError, SpecError
from bray_core.nested import ArraySpec, Nested
from bray_core.process.user_modules import import_user_code
from bray_core.settings.choice import nearest
from bray_core.spaces import Bound, LeafSpace, Spaces, kind_of

ALIASES = {"cartpole": "CartPole-v1"}
"""Short names that `bray play` and `bray train` know."""
_FORMS = "an id of Gymnasium, module:Id, module:Class or file.py:Class"
_WHOLE = "biu"
"""Kinds of numpy's types that hold no fractions."""
_REMEDIES = {
    "Text": "turn the text into numbers in a wrapper ({wrapper}), such as the indices of its words "
    "(MultiDiscrete)",
    "Graph": "turn it in a wrapper ({wrapper}) into arrays of a fixed size: the nodes' features "
    "and an adjacency matrix",
    "Sequence": "give it a fixed size in a wrapper ({wrapper}): a Tuple of the most parts that "
    "there may be, and a Discrete that says how many count",
    "MissionSpace": "leave MiniGrid's words out by wrappers=[minigrid.wrappers:ImgObsWrapper], or "
    "turn them into numbers in a wrapper of yours",
    "OneOf": "turn it in a wrapper into a Dict of a Discrete, which says which, and of all parts",
}
"""Spaces without arrays of a fixed size → what to do instead."""
ATARI = "ALE/"
"""Namespace of the ids of Atari games."""


def import_gymnasium() -> Any:
    """Return the module.

    Raises:
        MissingExtraError: the package is not installed.
    """
    try:
        import gymnasium
    except ImportError:
        raise MissingExtraError("playing Gymnasium environments", "bray-actor", "gym") from None
    return gymnasium


def import_ale() -> Any:
    """Return the module `ale_py`, which registers Atari games.

    Raises:
        MissingExtraError: the package is not installed.
    """
    try:
        import ale_py
    except ImportError as error:
        raise MissingExtraError("playing Atari games", "bray-actor", "atari") from error
    return ale_py


def resolve(environment: str) -> str:
    """Return the registered id of an environment's id or short name.

    An Atari game may be named alone: `Pong` is `ALE/Pong-v5`. As in Gymnasium, `module:Id-v0`
    imports the module first, which registers the id; a module of the working directory is found.
    A class or function that is not registered (`module:Class`, `file.py:Class`) stays as it is.

    Raises:
        ConfigError: the id is unknown (the message names the closest), or the module that registers
            it cannot be imported.
        MissingExtraError: `ALE/…`, and ale_py is not installed.
    """
    gymnasium = import_gymnasium()
    module, _, name = environment.rpartition(":")
    resolved = ALIASES.get(name, name)
    if resolved in gymnasium.registry:
        return resolved
    if module:
        kind = "file" if module.endswith(".py") else "module"
        try:
            imported = import_user_code(module)
        except (ImportError, OSError, SyntaxError, ValueError) as error:
            raise ConfigError(
                f"environment: {environment!r} needs the {kind} {module}, which cannot be "
                f"imported: {error}"
            ) from error
        gymnasium.register_envs(imported)
        if resolved not in gymnasium.registry and callable(getattr(imported, name, None)):
            return environment
    elif resolved.startswith(ATARI):
        gymnasium.register_envs(import_ale())
    else:
        resolved = _game(gymnasium, resolved)
    if resolved not in gymnasium.registry:
        near = nearest(name, [*gymnasium.registry, *ALIASES])
        whole = f"{module}:{near}" if module else near
        meant = f", did you mean {whole!r}?" if near is not None else f": expected {_FORMS}"
        raise ConfigError(f"environment: unknown {environment!r}{meant}")
    return resolved


def _game(gymnasium: Any, name: str) -> str:
    """Return the id of the Atari game of a name; the name, if there is none."""
    game = f"{ATARI}{name}-v5"
    if name.isalnum() and find_spec("ale_py") is not None:
        gymnasium.register_envs(import_ale())
    return game if game in gymnasium.registry else name


def spec_of(space: Any) -> Nested:
    """Return the nested `ArraySpec` of a space's values.

    Raises:
        ConfigError: the space has no fixed arrays; the message names its kind.
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


def of_gymnasium(origin: str, observation: Any, action: Any) -> Spaces:
    """Return what a policy sees and may do, read from Gymnasium's spaces.

    Args:
        origin: name of what has them, for messages.
        observation: a Gymnasium space.
        action: a Gymnasium space.

    Raises:
        ConfigError: a space has no arrays of a fixed size, or holds nothing; says what to do
            instead.
    """
    return Spaces(
        origin,
        _some_leaves(observation, f"environment: {origin}: observation"),
        _some_leaves(action, f"environment: {origin}: action", is_action=True),
    )


def _some_leaves(space: Any, path: str, *, is_action: bool = False) -> Nested:
    leaves = _leaves(space, path, is_action=is_action)
    if not any(True for _ in nested.items(leaves)):
        raise ConfigError(
            f"{path}: expected one number or more, got {space}: where there is nothing, let a "
            "wrapper make it one constant, such as Discrete(1)"
        )
    names = Counter(name for name, _ in nested.items(leaves, path))
    twice = next((name for name, count in names.items() if count > 1), None)
    if twice is not None:
        raise ConfigError(
            f"{path}: two parts are named {twice.removeprefix(path)[1:]!r}, where `/` stands "
            "between the names of nested parts: rename one in a wrapper"
        )
    for name, leaf in nested.items(leaves, path):
        if 0 in leaf.shape:
            raise ConfigError(
                f"{name}: expected a shape of numbers of 1 or more, got {leaf.shape}: leave it out "
                "in a wrapper, as it holds nothing"
            )
    return leaves


def _leaves(space: Any, path: str, *, is_action: bool = False) -> Nested:
    spaces = import_gymnasium().spaces
    if isinstance(space, spaces.Dict):
        if any(not isinstance(name, str) for name in space):
            raise ConfigError(
                f"{path}: expected a Dict whose names are words, got {list(space)}: rename "
                "its parts in a wrapper, or make it a Tuple"
            )
        return {
            name: _leaves(child, f"{path}/{name}", is_action=is_action)
            for name, child in space.items()
        }
    if isinstance(space, spaces.Tuple):
        return tuple(
            _leaves(child, f"{path}[{i}]", is_action=is_action) for i, child in enumerate(space)
        )
    if isinstance(space, spaces.Discrete):
        return LeafSpace("category", "int64", (), (int(space.n),), start=int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        start = tuple(np.reshape(space.start, -1).tolist())
        sizes = tuple(np.reshape(space.nvec, -1).tolist())
        shape, dtype = tuple(space.shape), np.dtype(space.dtype).name
        return LeafSpace("category", dtype, shape, sizes, start=start if any(start) else 0)
    if isinstance(space, spaces.MultiBinary):
        return LeafSpace("binary", np.dtype(space.dtype).name, tuple(space.shape))
    if isinstance(space, spaces.Box):
        shape, dtype = tuple(space.shape), np.dtype(space.dtype).name
        if type(space).__name__ == "SetBox":  # of `bray_actor.environments.sets`
            return LeafSpace("set", dtype, shape)
        kind = kind_of(dtype, shape)
        return LeafSpace(kind, dtype, shape, low=_bound(space.low), high=_bound(space.high))
    remedy = _REMEDIES.get(type(space).__name__, "describe its values by one of these")
    wrapper = "ActionWrapper" if is_action else "ObservationWrapper"
    remedy = remedy.format(wrapper=f"gymnasium.{wrapper}")
    raise ConfigError(
        f"{path}: expected Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple, "
        f"got {type(space).__name__}: {remedy}"
    )


def _bound(values: Any) -> Bound:
    """Return bounds as one number where they are all alike; None where there are none."""
    numbers = np.asarray(values, np.float64).reshape(-1)
    if not np.isfinite(numbers).any():
        return None
    if (numbers == numbers[0]).all():
        return float(numbers[0])
    return tuple(float(one) if np.isfinite(one) else None for one in numbers)


def has_sets(space: Any) -> bool:
    """Return whether there is a `Sequence` somewhere in a space."""
    spaces = import_gymnasium().spaces
    if isinstance(space, spaces.Dict):
        return any(map(has_sets, space.values()))
    if isinstance(space, spaces.Tuple):
        return any(map(has_sets, space))
    return isinstance(space, spaces.Sequence)


def check_spaces(observation: Any, action: Any, agent: str = "") -> None:
    """Refuse spaces that have no arrays.

    Raises:
        ConfigError: a space cannot be played; the message names it, its agent and its kind.
    """
    of = f" of {agent!r}" if agent else ""
    for name, space in (("observation_space", observation), ("action_space", action)):
        try:
            spec_of(space)
        except ConfigError as error:
            raise ConfigError(f"environment: {name}{of}: {error}") from None


def to_arrays(space: Any, value: Any) -> Nested:
    """Return a value of a space as arrays of its spec, or a batch of values likewise.

    Raises:
        SpecError: there are fractions where the space has whole numbers, or numbers that its type
            cannot hold.
    """
    spaces = import_gymnasium().spaces
    if isinstance(space, spaces.Dict):
        return {name: to_arrays(child, value[name]) for name, child in space.items()}
    if isinstance(space, spaces.Tuple):
        return [to_arrays(child, v) for child, v in zip(space, value, strict=True)]
    given = np.asarray(value)
    if given.dtype.kind not in _WHOLE and space.dtype.kind in _WHOLE:
        raise SpecError(f"environment: observation: expected whole numbers, got {given.dtype}")
    if isinstance(space, spaces.Discrete):
        return np.asarray(given.astype(np.int64, copy=False) - space.start)
    if may_overflow(given.dtype, space.dtype):
        check_overflow(given, space.dtype, "environment: observation")
    array = given.astype(space.dtype, copy=False)
    return array - space.start if isinstance(space, spaces.MultiDiscrete) else array


def may_overflow(dtype: Any, into: Any) -> bool:
    """Return whether a cast can turn a number into another; floats beyond float32 are looked at."""
    if into.kind == "f":
        return bool(into.itemsize < 4 and dtype != into)
    return not np.can_cast(dtype, into)


def check_overflow(array: Any, dtype: Any, path: str) -> None:
    """Refuse numbers that a cast would turn into others: 200 is −56 as int8.

    Args:
        array: What the environment told.
        dtype: What its space says.
        path: Its name, for messages.

    Raises:
        SpecError: there are some; names the first.
    """
    with np.errstate(over="ignore"):
        cast = array.astype(dtype)
    wrong = ~np.isfinite(cast) if dtype.kind == "f" else cast != array
    if wrong.any():
        raise SpecError(
            f"{path}: expected {dtype} as the space says, got {array[wrong][0]}: let the space "
            f"say {array.dtype}"
        )


def to_action(space: Any, value: Nested) -> Any:
    """Return an actor's action as a value of the action space; reals are clipped to a Box.

    Raises:
        ConfigError: the space does not contain the action.
    """
    try:
        action = _to_value(space, value)
    except (TypeError, ValueError, KeyError, IndexError, OverflowError) as error:
        raise ConfigError(f"action: expected one of {space}, got {value!r}") from error
    if not space.contains(action):
        raise ConfigError(f"action: expected one of {space}, got {value!r}")
    return action


def _to_value(space: Any, value: Nested) -> Any:
    spaces = import_gymnasium().spaces
    if isinstance(space, spaces.Dict):
        if set(value) != set(space.keys()):
            raise ValueError("other names")
        return {name: _to_value(child, value[name]) for name, child in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_to_value(child, v) for child, v in zip(space, value, strict=True))
    if isinstance(space, spaces.Discrete):
        number = np.asarray(value)
        if number.dtype.kind not in "iu":  # 0.7 is no action, nor is True
            raise TypeError("not an integer")
        return int(number) + int(space.start)
    if isinstance(space, spaces.Box):
        # An array also of no dimensions: Gymnasium warns of a number.
        return np.asarray(np.clip(np.asarray(value, space.dtype), space.low, space.high))
    if np.asarray(value).dtype.kind not in "iub":
        raise TypeError("not integers")
    action = np.asarray(value, space.dtype)
    return action + space.start if isinstance(space, spaces.MultiDiscrete) else action
