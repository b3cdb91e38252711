"""Opponents that a goal or a template names: chance, a script, a version, a search, an export."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from bray.games.board_search import BoardSearch
from bray.games.exported_opponents import ExportedOpponents
from bray.games.scripted_model import ScriptedModel, found_script
from bray.sources.opponents_config import is_version_name
from bray_actor.multi_agent.seat import Seat
from bray_actor.policy.policy_config import PolicyConfig
from bray_core import nested
from bray_core.action_vector import ActionVector
from bray_core.errors import ConfigError
from bray_core.nested import Nested
from bray_core.spaces import LeafSpace, Spaces

VersionSeat: TypeAlias = Callable[[str], Seat]
"""Returns the seat of a version by its name, `v12` or `main:v12`."""

_FORMS = (
    "random, search, a script (module:function, file.py:function), or the folder of an export or a "
    "trial"
)


def named_opponent(
    name: str,
    spaces: Spaces,
    *,
    seed: int = 0,
    versions: VersionSeat | None = None,
    exports: ExportedOpponents | None = None,
) -> Seat:
    """Return the seat of an opponent that is named; it records nothing.

    Args:
        name: `random`; `search`, for bray's own board games; a version such as `v12` or `main:v12`;
            `module:function` or `file.py:function`, called with an observation and a generator of
            numpy, which returns an action; or the folder of an export, or of a trial with one.
        spaces: What the agent sees and may do.
        seed: Seed of its draws.
        versions: Finds versions; None: there are none.
        exports: Exports that were loaded before, and closes them; None loads and leaves it open.

    Raises:
        ConfigError: the name is none of these, its function cannot be imported, or no search knows
            the game.
        NotFoundError: there is no such version.
        ExportError: the export is broken.
    """
    if name == "random":
        return _scripted(name, spaces, seed, partial(random_action, spaces.action))
    if name == "search":
        return _scripted(name, spaces, seed, BoardSearch.of(spaces))
    if is_version_name(name):
        if versions is None:
            raise ConfigError(
                f"opponent: {name}: frozen versions play while their trial is trained, and are not "
                f"exported: expected {_FORMS}"
            )
        return versions(name)
    if name and Path(name).is_dir():
        return (exports or ExportedOpponents()).seat(Path(name))
    where, _, function = name.rpartition(":")
    if not where or not function.isidentifier():
        version = "" if versions is None else "a version (v12), "
        raise ConfigError(f"opponent: expected {version}{_FORMS}, got {name!r}")
    found_script(name)  # a mistake is told now, not in the first game
    return _scripted(name, spaces, seed, None)


def _scripted(name: str, spaces: Spaces, seed: int, function: Any) -> Seat:
    model = ScriptedModel(name, spaces, seed=seed, function=function)
    return Seat(name=name, model=model, config=PolicyConfig(deterministic=True, phase="opponent"))


def random_action(space: Nested, observation: Any, generator: np.random.Generator) -> Nested:
    """Return an action that is drawn evenly from those that are allowed.

    Reals without bounds on both sides are drawn from a normal distribution.

    Args:
        space: Nested `LeafSpace`s of the action.
        observation: Observation, whose `action_mask` says what is allowed if there is one.
        generator: Source of the draw.
    """
    mask = observation.get("action_mask") if isinstance(observation, dict) else None
    actions = ActionVector(space)
    drawn = _choices(actions.sizes, mask, generator)
    drawn += _reals(nested.flatten(space).values(), generator)
    numbers = np.asarray(drawn[0] if actions.is_one else drawn, actions.spec.dtype)
    return actions.assemble(numbers)


def _choices(sizes: list[int], mask: Any, generator: np.random.Generator) -> list[float]:
    allowed = np.ones(sum(sizes)) if mask is None else np.asarray(mask, np.float64).reshape(-1)
    if len(allowed) != sum(sizes):
        raise ConfigError(f"action_mask: expected {sum(sizes)} flags, got {len(allowed)}")
    parts = np.split(allowed, np.cumsum(sizes)[:-1]) if sizes else []
    return [
        float(generator.choice(np.flatnonzero(part) if part.any() else len(part))) for part in parts
    ]


def _reals(leaves: Any, generator: np.random.Generator) -> list[float]:
    drawn: list[float] = []
    for leaf in leaves:
        if leaf.kind in ("real", "image"):
            drawn += _real(leaf, generator).reshape(-1).tolist()
    return drawn


def _real(leaf: LeafSpace, generator: np.random.Generator) -> np.ndarray[Any, Any]:
    low, high = leaf.bounds()
    is_bounded = np.isfinite(low) & np.isfinite(high)
    evenly = generator.uniform(np.where(is_bounded, low, 0.0), np.where(is_bounded, high, 1.0))
    return np.asarray(np.where(is_bounded, evenly, generator.normal(size=low.shape)))
