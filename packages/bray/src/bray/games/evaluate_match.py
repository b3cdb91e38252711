"""Matches of one policy against a named opponent, to measure how often it wins."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from bray.games.match_scores import score_of, side_returns
from bray.games.sides import Sides
from bray_actor.multi_agent.environment import MultiAgentEnvironment
from bray_actor.multi_agent.playing import play_games
from bray_actor.multi_agent.seat import GameResult, Seat
from bray_core.errors import ConfigError

MAX_STEPS = 100_000
"""Steps of a game after which it is cut, and decided by the returns so far."""


def evaluate_match(
    seat: Seat,
    opponent: Seat | Mapping[str, Seat],
    environments: Sequence[MultiAgentEnvironment],
    num_games: int,
    seed: int,
    *,
    sides: Sides,
    max_steps: int = MAX_STEPS,
) -> list[float]:
    """Play games against an opponent and return the scores; nothing is recorded.

    The policy plays all sides by turns, so each equally often but for one game.

    Args:
        seat: Policy that is measured: a version that stays as it is.
        opponent: Who plays the other sides, or that by agent where their spaces differ.
        environments: Environments that are stepped side by side; they stay open.
        num_games: Number of games; 100 tell a win rate to about ±0.1.
        seed: Seed of the environments and draws.
        sides: Agents by side.
        max_steps: Steps of a game after which it is cut.

    Returns:
        The score of each game: 1 where the policy's return is greater than that of every other
        side, 0.5 where it shares the greatest, else 0.

    Raises:
        ConfigError: an argument is below 1, the opponent has the policy's name, or an agent has
            no opponent.
        Exception: the error of a model.
    """
    others = opponent if isinstance(opponent, Mapping) else _for_all(opponent, sides)
    _check_opponents(seat, others, sides)
    cast = _AlternatingCast(seat, others, sides)
    results = play_games(environments, cast, num_games, seed, max_steps=max_steps)
    return [_score(result, seat.name, sides) for result in results]


class _AlternatingCast:
    """Gives the measured policy each side by turns."""

    def __init__(self, seat: Seat, opponents: Mapping[str, Seat], sides: Sides) -> None:
        self._seat = seat
        self._opponents = opponents
        self._sides = sides
        self._num_drawn = 0

    def draw(self, generator: random.Random) -> Mapping[str, Seat]:
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


def _score(result: GameResult, name: str, sides: Sides) -> float:
    returns = side_returns(result, sides)
    mine = next(side for side, agents in sides.items() if result.seats[agents[0]] == name)
    return min(score_of(returns[mine], other) for side, other in returns.items() if side != mine)
