"""Who plays the matches in which one policy is measured against an opponent."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from bray.games.sides import Sides
from bray_actor.multi_agent.seat import Seat
from bray_core.errors import ConfigError


class EvaluationCast:
    """Gives the measured policy each side by turns, so each equally often but for one game.

    Args:
        seat: Policy that is measured: a version that stays as it is.
        opponent: Who plays the other sides, or that by agent where their spaces differ.
        sides: Agents by side.

    Raises:
        ConfigError: the opponent has the policy's name, or an agent has no opponent.
    """

    def __init__(self, seat: Seat, opponent: Seat | Mapping[str, Seat], sides: Sides) -> None:
        self._seat = seat
        self._opponents = opponent if isinstance(opponent, Mapping) else _for_all(opponent, sides)
        self._sides = sides
        self._num_drawn = 0
        _check_opponents(seat, self._opponents, sides)

    def draw(self, generator: random.Random) -> Mapping[str, Seat]:
        """Return the seat of each agent of the next game."""
        mine = list(self._sides)[self._num_drawn % len(self._sides)]
        self._num_drawn += 1
        return {
            agent: self._seat if side == mine else self._opponents[agent]
            for side, agents in self._sides.items()
            for agent in agents
        }

    def tell(self, news: Any) -> None:
        """Do nothing."""


def _for_all(opponent: Seat, sides: Sides) -> dict[str, Seat]:
    return {agent: opponent for agents in sides.values() for agent in agents}


def _check_opponents(seat: Seat, opponents: Mapping[str, Seat], sides: Sides) -> None:
    missing = [agent for agents in sides.values() for agent in agents if agent not in opponents]
    if missing:
        raise ConfigError(f"opponent: expected one for each agent, got none for {missing}")
    if any(other.name == seat.name for other in opponents.values()):
        raise ConfigError(
            f"opponent: expected another name than {seat.name!r}: results are told apart by names"
        )
