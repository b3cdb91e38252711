"""Tic-tac-toe: three in a row on 3 × 3."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bray_algo.games import rows
from bray_algo.games.rows import Board


class TicTacToe:
    """A `Game` of boards `[3, 3]`; action 3 · row + column.

    Examples:
        >>> game = TicTacToe()
        >>> state = game.step(game.initial(), 4)
        >>> state.tolist(), int(game.legal(state).sum()), game.outcome(state)
        ([[0, 0, 0], [0, -1, 0], [0, 0, 0]], 8, None)
    """

    num_actions = 9
    _lines = rows.winning_lines(3, 3, 3)

    def initial(self) -> Board:
        """Return the empty board."""
        return np.zeros((3, 3), np.int8)

    def legal(self, state: Board) -> npt.NDArray[np.bool_]:
        """Return which cells are empty, `[9]`."""
        legal: npt.NDArray[np.bool_] = state.ravel() == 0
        return legal

    def step(self, state: Board, action: int) -> Board:
        """Return the board after a stone on a cell.

        Raises:
            ValueError: the cell is taken, or none.
        """
        row, column = divmod(action, 3)
        if not 0 <= action < 9 or state[row, column]:
            raise ValueError(f"action: expected an empty cell, 0 to 8, got {action}")
        after = -state
        after[row, column] = -1
        return after

    def outcome(self, state: Board) -> float | None:
        """Return −1 lost, 0 drawn, None not ended."""
        return rows.outcome(state, self._lines)

    def observation(self, state: Board) -> npt.NDArray[np.float32]:
        """Return the mover's stones and the other's, `[2, 3, 3]`."""
        return rows.planes(state)
