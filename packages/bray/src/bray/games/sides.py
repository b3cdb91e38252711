"""The sides of a match: which agents of an environment play together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from bray_core.errors import ConfigError
from bray_core.settings.name_pattern import fits

Sides: TypeAlias = Mapping[str, tuple[str, ...]]
"""Names of the agents by side; one policy plays all agents of a side."""


def sides_of(agents: Sequence[str], sides: Mapping[str, str] | int | None = None) -> Sides:
    """Return which agents play on which side.

    Args:
        agents: Names of all agents of an environment.
        sides: Pattern of the agents' names by side, such as `{red: "red_*", blue: "blue_*"}`; or
            the number of sides, each of one agent; None: each agent is a side.

    Raises:
        ConfigError: an agent fits no side or several, a side has no agents, or there are fewer
            than two sides or another number.
    """
    if isinstance(sides, Mapping):
        found = _by_pattern(agents, sides)
    else:
        found = {agent: (agent,) for agent in agents}
        if sides is not None and sides != len(found):
            raise ConfigError(
                f"sides: expected {sides}, got an environment of {len(found)} agents "
                f"({_shown(agents)}): say who plays together, such as "
                '{red: "red_*", blue: "blue_*"}'
            )
    if len(found) < 2:
        raise ConfigError(
            f"sides: expected two sides or more, got {list(found)}: an environment of one side has "
            "no opponents"
        )
    return found


def sides_in(agents: Sequence[str], sides: Sides) -> Sides | None:
    """Return the sides of a game with the agents that took part in it.

    Args:
        agents: Names of all who took part.
        sides: Agents by side, or patterns of these, as where simulators tell the names.

    Returns:
        The sides; None: an agent fits none of them, or a side has no agent: another game's.
    """
    if {agent for members in sides.values() for agent in members} == set(agents):
        return sides
    found: dict[str, list[str]] = {side: [] for side in sides}
    for agent in agents:
        side = next((s for s, those in sides.items() if _fits(agent, those)), None)
        if side is None:
            return None
        found[side].append(agent)
    return {s: tuple(those) for s, those in found.items()} if all(found.values()) else None


def _fits(agent: str, members: Sequence[str]) -> bool:
    return any(fits(agent, one) for one in members)


def _by_pattern(agents: Sequence[str], patterns: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {side: [] for side in patterns}
    for agent in agents:
        fitting = [side for side, pattern in patterns.items() if fits(agent, pattern)]
        if len(fitting) != 1:
            raise ConfigError(
                f"sides: expected one side for agent {agent!r}, got {fitting or 'none'} of "
                f"{dict(patterns)}"
            )
        found[fitting[0]].append(agent)
    for side, members in found.items():
        if not members:
            raise ConfigError(
                f"sides.{side}: expected a pattern of agents' names, got {patterns[side]!r}, which "
                f"fits none of {_shown(agents)}"
            )
    return {side: tuple(members) for side, members in found.items()}


def _shown(agents: Sequence[str]) -> str:
    more = ", …" if len(agents) > 8 else ""
    return ", ".join(agents[:8]) + more
