"""Who has won a match of several sides, by its simulator's scores or by what it brought them."""

from __future__ import annotations

import math
from itertools import combinations
from typing import NamedTuple

from bray.games.sides import Sides
from bray_actor.multi_agent.seat import GameResult


class PairScore(NamedTuple):
    """How one seat did against another in a match."""

    one: str
    """Name of the one seat."""
    other: str
    """Name of the other seat."""
    score: float
    """Score of the one: 1 it won, 0.5 a draw, 0 the other won."""


def side_scores(result: GameResult, sides: Sides) -> dict[str, float]:
    """Return what decides a match, by side: the mean of the scores that a simulator told of the
    side's agents, if it told some of each side; else the mean of their returns, where an agent that
    never took part counts as 0."""
    told = {
        side: [result.scores[agent] for agent in agents if agent in result.scores]
        for side, agents in sides.items()
    }
    if all(told.values()):
        return {side: math.fsum(scores) / len(scores) for side, scores in told.items()}
    return {
        side: math.fsum(result.returns.get(agent, 0.0) for agent in agents) / len(agents)
        for side, agents in sides.items()
    }


def score_of(mine: float, other: float) -> float:
    """Return 1 where the greater number is mine, 0.5 where both are equal but for rounding."""
    if math.isclose(mine, other, rel_tol=1e-9, abs_tol=1e-12):
        return 0.5
    return float(mine > other)


def pair_scores(result: GameResult, sides: Sides) -> list[PairScore]:
    """Return how every two sides of a match did against each other.

    Args:
        result: How the match ended.
        sides: Agents by side.
    """
    decides = side_scores(result, sides)
    seats = {side: result.seats[agents[0]] for side, agents in sides.items()}
    return [
        PairScore(seats[one], seats[other], score_of(decides[one], decides[other]))
        for one, other in combinations(sides, 2)
    ]


def sides_by_seat(result: GameResult) -> Sides:
    """Return the agents of a game by who played them: where each policy is a side."""
    found: dict[str, tuple[str, ...]] = {}
    for agent, seat in result.seats.items():
        found[seat] = (*found.get(seat, ()), agent)
    return found


def game_score(result: GameResult, seat: str, sides: Sides) -> float:
    """Return how a seat that plays one side did against all others.

    Args:
        result: How the match ended.
        seat: Name of the seat.
        sides: Agents by side.

    Returns:
        1 where its score, or else its return, is greater than that of every other side, 0.5 where
        it shares the greatest, else 0.
    """
    decides = side_scores(result, sides)
    mine = next(side for side, agents in sides.items() if result.seats[agents[0]] == seat)
    return min(score_of(decides[mine], other) for side, other in decides.items() if side != mine)
