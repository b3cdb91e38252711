"""Connect four: stones fall, four in a row on 6 × 7."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bray_algo.games import rows
from bray_algo.games.rows import Board


class ConnectFour:
    """A `Game` of boards `[6, 7]`, row 0 on top; the action is the column."""

    num_actions = 7
    _lines = rows.winning_lines(6, 7, 4)

    def initial(self) -> Board:
        """Return the empty board."""
        return np.zeros((6, 7), np.int8)

    def legal(self, state: Board) -> npt.NDArray[np.bool_]:
        """Return which columns have room, `[7]`."""
        legal: npt.NDArray[np.bool_] = state[0] == 0
        return legal

    def step(self, state: Board, action: int) -> Board:
        """Return the board after a stone into a column.

        Raises:
            ValueError: the column is full, or none.
        """
        if not 0 <= action < 7 or state[0, action]:
            raise ValueError(f"action: expected a column with room, 0 to 6, got {action}")
        row = 5 - int(np.count_nonzero(state[:, action]))
        after = -state
        after[row, action] = -1
        return after

    def outcome(self, state: Board) -> float | None:
        """Return −1 lost, 0 drawn, None not ended."""
        return rows.outcome(state, self._lines)

    def observation(self, state: Board) -> npt.NDArray[np.float32]:
        """Return the mover's stones and the other's, `[2, 6, 7]`."""
        return rows.planes(state)
