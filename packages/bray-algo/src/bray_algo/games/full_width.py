"""Search of all moves to a depth, for many positions at a time: opponents to measure against."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from bray_algo.games.bitboards import RowGame
from bray_algo.games.rules import BatchGame, States

Floats: TypeAlias = npt.NDArray[np.float64]

Heuristic: TypeAlias = Callable[[States], Floats]
"""States `[N]` that go on → values between −1 and 1 for the player to move, `[N]`."""


def action_values(
    game: BatchGame, states: States, depth: int, heuristic: Heuristic | None = None
) -> Floats:
    """Return what each action is worth to the player to move, `[N, A]`; −inf: illegal.

    Minimax without pruning, so that every action's value is exact and equals can be told. A win
    after k moves counts 2 − k / (depth + 1) times the outcome: the shortest way to win and the
    longest to lose are the best. What lies beyond the depth counts as the heuristic says, or as a
    draw.

    Args:
        game: Rules of the game.
        states: States that go on, `[N, S]`.
        depth: Moves to look ahead, 1 or more; each costs up to A times as much, and
            `game.max_moves` is perfect play.
        heuristic: Worth of positions at that depth; None counts them as drawn.

    Raises:
        ValueError: a game has ended, or the depth is less than 1.
    """
    if depth < 1:
        raise ValueError(f"depth: expected 1 or more, got {depth}")
    if not np.isnan(game.outcome(states)).all():
        raise ValueError("states: expected games that go on, got an ended one")
    # Games side by side often share positions; each is searched once.
    unique, index = np.unique(states, axis=0, return_inverse=True)
    return _action_values(game, unique, 1, depth, heuristic)[index.ravel()]


def best_actions(values: Floats, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return one of the best actions of each row of values `[N, A]`, at random, `[N]`."""
    is_best = values >= values.max(1, keepdims=True) - 1e-9
    draws: npt.NDArray[np.int64] = (is_best * rng.uniform(0.5, 1.0, values.shape)).argmax(1)
    return draws


def _action_values(
    game: BatchGame, states: States, at: int, depth: int, heuristic: Heuristic | None
) -> Floats:
    values = np.full((len(states), game.num_actions), -np.inf)
    rows, actions = np.nonzero(game.legal(states))
    children = game.step(states[rows], actions)
    outcome = game.outcome(children)
    goes_on = np.isnan(outcome)
    worth = outcome * (2 - at / (depth + 1))
    if at < depth and goes_on.any():
        below = _action_values(game, children[goes_on], at + 1, depth, heuristic)
        worth[goes_on] = below.max(1)
    elif goes_on.any():
        worth[goes_on] = 0.0 if heuristic is None else heuristic(children[goes_on])
    values[rows, actions] = -worth
    return values


def open_rows(game: RowGame) -> Heuristic:
    """Return the usual heuristic of connect four: rows that can still be won, by their stones.

    A row without the other's stones counts 1, 4, 16, … for 1, 2, 3, … stones in it; the mover's sum
    less the other's, squashed to −1 to 1.
    """
    lines = game.lines()

    def value(states: States) -> Floats:
        total = np.zeros(len(states))
        mover, other = states[:, 0], states[:, 1]
        for line in lines.tolist():
            ours, theirs = np.bitwise_count(mover & line), np.bitwise_count(other & line)
            total += np.where(theirs == 0, 4.0**ours, 0) - np.where(ours == 0, 4.0**theirs, 0)
        return np.asarray(total / (200 + np.abs(total)))

    return value
