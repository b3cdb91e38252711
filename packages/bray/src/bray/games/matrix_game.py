"""Matrix games (one move each): their names, how they are played, and what goes round in them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from bray_algo.league.equilibrium import exploitability, symmetrised
from bray_algo.league.intervals import Floats
from bray_core import nested
from bray_core.errors import ConfigError
from bray_core.layout import Layout
from bray_core.settings.choice import closest

GAMES: dict[str, list[list[float]]] = {
    "rock-paper-scissors": [[0, -1, 1], [1, 0, -1], [-1, 1, 0]],
    "rock-paper-scissors-well": [[0, -1, 1, -1], [1, 0, -1, 1], [-1, 1, 0, -1], [1, -1, 1, 0]],
    "matching-pennies": [[1, -1], [-1, 1]],
}
"""Payoffs of games by name: what the row's player wins."""
LAYOUT = Layout(
    nested.spec({"action": np.int64(0), "reward": np.float32(0), "restart": np.bool_(False)})
)
"""Layout of one game of a learner, and whether the learner begins anew instead."""


def named_game(text: str) -> list[list[float]]:
    """Return the payoffs of a game by its name, or of a matrix as JSON.

    Raises:
        ConfigError: it is neither; names the closest game.
    """
    try:
        payoff: list[list[float]] = GAMES.get(text) or json.loads(text)
    except ValueError:
        raise ConfigError(
            f"task: expected one of {', '.join(GAMES)}, or a matrix as JSON, got {text!r}"
            f"{closest(text, GAMES)}"
        ) from None
    return payoff


def antisymmetric(payoff: npt.ArrayLike) -> Floats:
    """Return the game that is played: antisymmetric, its largest payoff 1.

    Args:
        payoff: Payoffs of a zero-sum game, `[N, N]` antisymmetric (both players choose among the
            same actions), or any `[M, N]`, of which `symmetrised` is played.

    Raises:
        ConfigError: not a finite matrix, or all zeros.
    """
    try:
        game = np.asarray(payoff, np.float64)
    except (ValueError, TypeError):  # rows of several lengths, or no numbers
        game = np.zeros(0)
    if game.ndim != 2 or not np.isfinite(game).all() or not game.any():
        raise ConfigError(f"payoff: expected finite [M, N], not all zeros, got {payoff!r}")
    if game.shape[0] != game.shape[1] or not np.allclose(game, -game.T):
        game = symmetrised(game)
    return game / max(float(np.abs(game).max()), 1e-12)


@dataclass(frozen=True, slots=True)
class Cycle:
    """How far a sequence of policies stays from an equilibrium."""

    exploitability: float
    """Mean exploitability of the policies."""
    least: float
    """Least exploitability of one policy."""
    turns: int
    """Number of times that the most likely action changes."""


def cycle(game: Floats, policies: Sequence[Floats]) -> Cycle:
    """Measure policies `[A]` in the order in which they came, one or more."""
    gaps = [exploitability(game, policy) for policy in policies]
    favourites = [int(policy.argmax()) for policy in policies]
    turns = sum(one != other for one, other in pairwise(favourites))
    return Cycle(float(np.mean(gaps)), min(gaps), turns)


def scores(won: Floats, rng: np.random.Generator) -> list[float]:
    """Return 1, 0.5 or 0 for payoffs of −1 to 1, by chance (fair on average) for those between."""
    lots = rng.random(len(won)) < (1 + won) / 2
    found: list[float] = np.where(np.isin(won, (-1, 0, 1)), (1 + won) / 2, lots).tolist()
    return found


def play(
    game: Floats, one: Floats, other: Floats, number: int, rng: np.random.Generator
) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return the first player's actions in so many games, and what they won, `[number]` each.

    Args:
        game: Payoffs, `[A, A]`.
        one: Probabilities of the first player's actions, `[A]`.
        other: Probabilities of the second player's actions, `[A]`.
        number: Number of games.
        rng: Source of the actions.
    """
    action, reply = (rng.choice(len(p), number, p=p / p.sum()) for p in (one, other))
    return action, game[action, reply]
