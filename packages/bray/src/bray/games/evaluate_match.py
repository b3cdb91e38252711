"""Matches of one policy against a named opponent, to measure how often it wins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bray.games.evaluation_cast import EvaluationCast
from bray.games.match_scores import game_score
from bray.games.sides import Sides
from bray_actor.multi_agent.environment import MultiAgentEnvironment
from bray_actor.multi_agent.playing import play_games
from bray_actor.multi_agent.seat import Seat

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
    plays: Sequence[str] = (),
    max_steps: int = MAX_STEPS,
) -> list[float]:
    """Play games against an opponent and return the scores; nothing is recorded.

    Args:
        seat: Policy that is measured: a version that stays as it is.
        opponent: Who plays the other sides, or that by agent where their spaces differ.
        environments: Environments that are stepped side by side; they stay open.
        num_games: Number of games; 100 tell a win rate to about ±0.1.
        seed: Seed of the environments and draws.
        sides: Agents by side.
        plays: Sides that the policy plays; empty: all.
        max_steps: Steps of a game after which it is cut.

    Returns:
        The score of each game, as `bray.games.match_scores.game_score` gives it.

    Raises:
        ConfigError: an argument is below 1, the opponent has the policy's name, or an agent has
            no opponent.
        Exception: the error of a model.
    """
    cast = EvaluationCast(seat, opponent, sides, plays)
    results = play_games(environments, cast, num_games, seed, max_steps=max_steps)
    return [game_score(result, seat.name, sides) for result in results]
