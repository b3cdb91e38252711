"""Matches between two players of a board game, all games side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from bray_algo.games.rules import BatchGame, States

Player: TypeAlias = Callable[[States], npt.NDArray[np.int64]]
"""States `[K, S]` that go on → a legal action of each, `[K]`."""


def play_match(
    game: BatchGame, player: Player, opponent: Player, num_games: int
) -> npt.NDArray[np.float64]:
    """Return how the games ended for `player`, `[num_games]`: 1 won, 0 drawn, −1 lost.

    All games are played side by side, and `player` begins every second one.

    Args:
        game: Rules of the game.
        player: Player whose outcomes are returned.
        opponent: Player whom it meets.
        num_games: Number of games, 1 or more; even is fair.

    Raises:
        ValueError: no game.
    """
    if num_games < 1:
        raise ValueError(f"num_games: expected 1 or more, got {num_games}")
    states = game.initial(num_games)
    is_ours = np.arange(num_games) % 2 == 0
    result = np.full(num_games, np.nan)
    while len(live := np.flatnonzero(np.isnan(result))):
        # All games in which the same player is to move are asked at once.
        for side, moves in ((live[is_ours[live]], player), (live[~is_ours[live]], opponent)):
            if len(side):
                states[side] = game.step(states[side], moves(states[side]))
        is_ours[live] = ~is_ours[live]
        outcome = game.outcome(states[live])  # for the one to move
        result[live] = np.where(is_ours[live], outcome, -outcome)
    return result
