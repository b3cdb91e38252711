"""Players of bray's board games that search: tic-tac-toe perfectly, connect four to a depth."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from bray.games.benchmark_opponents import benchmark_opponent
from bray.games.board_game import BOARD_GAMES, PLAYERS
from bray_algo.games import CONNECT_FOUR, TicTacToe, action_values, best_actions, solve
from bray_core.errors import ConfigError
from bray_core.spaces import Spaces

_BENCHMARK = "connect-four-rows"
"""Benchmark opponent whose depth and heuristic are those of connect four's search."""


class BoardSearch:
    """Plays one of the best moves, each as likely as the others.

    Args:
        name: `tic-tac-toe`, played perfectly, or `connect-four`, looking a few moves ahead.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod
    def of(cls, spaces: Spaces) -> BoardSearch:
        """Return the search for the board game that has these spaces.

        Raises:
            ConfigError: none of bray's board games has them.
        """
        for name, make in BOARD_GAMES.items():
            if make().spaces(PLAYERS[0]).difference(spaces) is None:
                return cls(name)
        raise ConfigError(
            f"search: expected a game whose rules bray knows ({', '.join(BOARD_GAMES)}), got "
            f"{spaces.origin}: name a function of yours (module:function)"
        )

    def __call__(self, observation: Any, generator: np.random.Generator) -> int:
        """Return a move for an observation of `BoardGame`."""
        mine, other = np.asarray(observation["observation"])
        board = (mine - other).astype(np.int8)
        if self.name == "tic-tac-toe":
            best = _perfect_moves().get(board.tobytes())
            if best is not None:
                return int(generator.choice(np.flatnonzero(best)))
            raise ConfigError("search: expected a board of tic-tac-toe that goes on, got another")
        opponent = benchmark_opponent(_BENCHMARK)
        states = CONNECT_FOUR.states(board[None])
        values = action_values(CONNECT_FOUR, states, opponent.depth, opponent.heuristic)
        return int(best_actions(values, generator)[0])


@cache
def _perfect_moves() -> dict[bytes, npt.NDArray[np.bool_]]:
    return solve(TicTacToe())
