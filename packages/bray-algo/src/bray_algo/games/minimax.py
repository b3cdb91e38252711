"""Minimax, the search of all moves: `minimax` to a depth, `solve` of a whole small game."""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from bray_algo.games.rules import Game

State = TypeVar("State")


def minimax(
    game: Game[State],
    state: State,
    depth: int | None = None,
    rng: np.random.Generator | None = None,
) -> tuple[float, int]:
    """Return the value of a state for the player to move, and a best action.

    Negamax with alpha-beta pruning (Knuth and Moore 1975), deepened step by step: it wins the
    shortest way that it sees and loses the longest. Among equally good actions it takes one at
    random with `rng`, else the first. What lies beyond the depth counts as a draw.

    Args:
        game: Rules whose outcomes lie within −1 and 1.
        state: A state that has not ended.
        depth: Moves to look ahead, 1 or more; each more costs up to A times as much. None looks to
            the end at once.
        rng: Source of the choice among equals.

    Raises:
        ValueError: the game has ended, or the depth is less than 1.
    """
    if game.outcome(state) is not None:
        raise ValueError("state: expected a game that goes on, got an ended one")
    if depth is not None and depth < 1:
        raise ValueError(f"depth: expected 1 or more, got {depth}")
    actions = np.flatnonzero(game.legal(state))
    if rng is not None:
        actions = rng.permutation(actions)
    best, choice = 0.0, -1
    for horizon in [math.inf] if depth is None else range(1, depth + 1):
        best, deeper = _best(game, state, actions.tolist(), horizon)
        # Where all is lost, the deepest search that saw a way on keeps its choice: lose late.
        if best > -1 or choice < 0:
            choice = deeper
        if abs(best) >= 1:
            break
    return best, choice


def solve(game: Game[npt.NDArray[np.int8]]) -> dict[bytes, npt.NDArray[np.bool_]]:
    """Return for each state that goes on which actions keep its value, `[A]`.

    Negamax without a cut, each state once: 4,520 of them in tic-tac-toe, half a second. Where a
    state is won all winning moves count, slow ones too: against a perfect reply they win as well.
    `minimax` plays larger games to a depth.

    Args:
        game: Rules whose states are arrays; their bytes (`state.tobytes()`) are the keys.
    """
    perfect: dict[bytes, npt.NDArray[np.bool_]] = {}
    values: dict[bytes, float] = {}

    def value(state: npt.NDArray[np.int8]) -> float:
        key = state.tobytes()
        if key in values:
            return values[key]
        ended = game.outcome(state)
        if ended is None:
            after = np.full(game.num_actions, -np.inf)
            for action in np.flatnonzero(game.legal(state)).tolist():
                after[action] = -value(game.step(state, action))
            ended = float(after.max())
            perfect[key] = after == ended
        values[key] = ended
        return ended

    value(game.initial())
    return perfect


def _best(game: Game[State], state: State, actions: list[int], depth: float) -> tuple[float, int]:
    best, choice = -math.inf, -1
    for action in actions:  # each with a window above the best: the first of equals stays
        value = -_value(game, game.step(state, action), depth - 1, -math.inf, -best)
        if value > best:
            best, choice = value, action
    return best, choice


def _value(game: Game[State], state: State, depth: float, low: float, high: float) -> float:
    """Return the value, exact between low and high, a bound of it outside."""
    ended = game.outcome(state)
    if ended is not None or depth <= 0:
        return ended or 0.0
    best = -math.inf
    for action in np.flatnonzero(game.legal(state)).tolist():
        best = max(best, -_value(game, game.step(state, action), depth - 1, -high, -max(best, low)))
        if best >= high:
            break
    return best
