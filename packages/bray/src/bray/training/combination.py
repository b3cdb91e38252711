"""What goes together: one rule that says why an algorithm cannot be trained on spaces or a source.

It reads what algorithms declare (`Takes`), and nothing else. The loop asks it before anything is
started; so do the table of the documentation and the tests of all cells.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np

from bray.training.algorithm import Algorithm
from bray_core.action_vector import ActionVector
from bray_core.errors import ConfigError
from bray_core.spaces import Spaces

SourceKind: TypeAlias = Literal["environments", "gamecores"]
ActionKind: TypeAlias = Literal["discrete", "multi_discrete", "box", "mixed"]

WORDS: dict[str, str] = {
    "discrete": "one choice (Discrete)",
    "multi_discrete": "several choices (MultiDiscrete, MultiBinary, a Dict or Tuple of choices)",
    "box": "reals (Box)",
    "mixed": "choices and reals at once (a Dict or Tuple of both)",
}
"""Kinds of actions in words."""


def action_kind(actions: ActionVector) -> ActionKind:
    """Return which kind of action it is, by what is drawn for it."""
    if actions.is_one:
        return "discrete"
    if not actions.num_reals:
        return "multi_discrete"
    return "mixed" if actions.sizes else "box"


def refusal(
    algorithm: type[Algorithm[Any]],
    spaces: Spaces,
    *,
    source: SourceKind = "environments",
    memory_size: int = 0,
) -> str | None:
    """Return why they do not go together, and what to do instead; None where they do.

    Args:
        algorithm: what is to be trained.
        spaces: what its policy would see and may do.
        source: where experience comes from.
        memory_size: units of the policy's memory.
    """
    takes, title = algorithm.takes, algorithm.title
    if takes.plays != "environments":
        return f"algorithm: {title} plays {takes.plays}, no environment of one agent"
    if source == "gamecores" and not takes.gamecores:
        return (
            f"source: {title} takes no gamecores, whose simulators it cannot begin in pairs or "
            "need not play: give it a Gymnasium environment"
        )
    if memory_size and not takes.memory:
        return f"model.memory_size: {title} takes no memory: 0, or train PPO"
    try:
        actions = ActionVector(spaces.action, spaces.origin)
    except ConfigError as error:
        return str(error)
    kind = action_kind(actions)
    if kind not in takes.actions:
        wanted = ", or ".join(WORDS[one] for one in takes.actions)
        return (
            f"environment: {spaces.origin}: expected actions that are {wanted} for {title}, got "
            f"{WORDS[kind]}: train {_others(kind)}"
        )
    most = np.finfo(np.float32).max  # as wide as a network's numbers can say
    if takes.bounded and not (actions.high - actions.low <= most).all():
        return (
            f"environment: {spaces.origin}: expected bounded actions for {title}, got some without "
            "bounds: wrap it (gymnasium.ActionWrapper, its action_space a Box with bounds), or "
            "train PPO"
        )
    return None


def _others(kind: ActionKind) -> str:
    """Return in words the common algorithms that take such actions."""
    return (
        "PPO"
        if kind in ("multi_discrete", "mixed")
        else "PPO or SAC"
        if kind == "box"
        else ("PPO or DQN")
    )


def check_combination(algorithm: Algorithm[Any], spaces: Spaces) -> None:
    """Refuse what does not go together.

    Raises:
        ConfigError: says why, and what to do instead.
    """
    parts = algorithm.parts
    is_remote = getattr(parts.source, "num_processes", 0) > 0
    reason = refusal(
        type(algorithm),
        spaces,
        source="gamecores" if is_remote else "environments",
        memory_size=getattr(parts.model, "memory_size", 0),
    )
    if reason is not None:
        raise ConfigError(reason)
