"""Who plays the matches in which one policy is measured against an opponent."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from bray.games.sides import Sides
from bray_actor.multi_agent.seat import Seat
from bray_core.errors import ConfigError


class EvaluationCast:
    """Gives the measured policy each side that it plays by turns, so each equally often but for
    one game.

    Args:
        seat: Policy that is measured: a version that stays as it is.
        opponent: Who plays the other sides, or that by agent where their spaces differ.
        sides: Agents by side.
        plays: Sides that the measured policy plays; empty: all.

    Raises:
        ConfigError: the opponent has the policy's name, or an agent has no opponent.
    """

    def __init__(
        self,
        seat: Seat,
        opponent: Seat | Mapping[str, Seat],
        sides: Sides,
        plays: Sequence[str] = (),
    ) -> None:
        self._seat = seat
        self._opponents = opponent if isinstance(opponent, Mapping) else _for_all(opponent, sides)
        self._sides = sides
        self._plays = tuple(plays or sides)
        self._num_drawn = 0
        _check_opponents(seat, self._opponents, self._opposing())

    def _opposing(self) -> list[str]:
        """Return the agents that an opponent may have to play: all, if the policy plays several
        sides, else those of the others."""
        alone = self._plays[0] if len(self._plays) == 1 else None
        return [agent for side, agents in self._sides.items() for agent in agents if side != alone]

    def draw(self, generator: random.Random) -> Mapping[str, Seat]:
        """Return the seat of each agent of the next game."""
        mine = self._plays[self._num_drawn % len(self._plays)]
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


def _check_opponents(seat: Seat, opponents: Mapping[str, Seat], agents: Sequence[str]) -> None:
    missing = [agent for agent in agents if agent not in opponents]
    if missing:
        raise ConfigError(f"opponent: expected one for each agent, got none for {missing}")
    if any(other.name == seat.name for other in opponents.values()):
        raise ConfigError(
            f"opponent: expected another name than {seat.name!r}: results are told apart by names"
        )
