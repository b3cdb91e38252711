"""Tic-tac-toe and connect four, one board at a time: each a `Game`.

A board is `[H, W]`, row 0 on top: 1 the stones of the player to move, −1 the other's, 0 empty.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Board = npt.NDArray[np.int8]


def winning_lines(height: int, width: int, length: int) -> npt.NDArray[np.int64]:
    """Return the cells of every line that wins, `[L, length]`, as indices of the flat board."""
    lines = [
        [(row + k * down) * width + column + k * right for k in range(length)]
        for down, right in ((0, 1), (1, 0), (1, 1), (1, -1))
        for row in range(height)
        for column in range(width)
        if row + (length - 1) * down < height and 0 <= column + (length - 1) * right < width
    ]
    return np.array(lines)


class TicTacToe:
    """A `Game` of boards `[3, 3]` on which three in a row win; the action is 3 · row + column.

    Examples:
        >>> game = TicTacToe()
        >>> state = game.step(game.initial(), 4)
        >>> state.tolist(), int(game.legal(state).sum()), game.outcome(state)
        ([[0, 0, 0], [0, -1, 0], [0, 0, 0]], 8, None)
    """

    num_actions = 9
    _lines = winning_lines(3, 3, 3)

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
            ValueError: the cell is taken, or does not exist.
        """
        row, column = divmod(action, 3)
        if not 0 <= action < 9 or state[row, column]:
            raise ValueError(f"action: expected an empty cell, 0 to 8, got {action}")
        after = -state  # the stone is the other player's, who is told of it next
        after[row, column] = -1
        return after

    def outcome(self, state: Board) -> float | None:
        """Return −1 where the player to move has lost, 0 on a full board, None if it goes on."""
        return _outcome(state, self._lines)

    def observation(self, state: Board) -> npt.NDArray[np.float32]:
        """Return the mover's stones and the other's, `[2, 3, 3]`."""
        return _planes(state)


class ConnectFour:
    """A `Game` of boards `[6, 7]` on which stones fall and four in a row win.

    The action is the column.
    """

    num_actions = 7
    _lines = winning_lines(6, 7, 4)

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
            ValueError: the column is full, or does not exist.
        """
        if not 0 <= action < 7 or state[0, action]:
            raise ValueError(f"action: expected a column with room, 0 to 6, got {action}")
        row = 5 - int(np.count_nonzero(state[:, action]))
        after = -state
        after[row, action] = -1
        return after

    def outcome(self, state: Board) -> float | None:
        """Return −1 where the player to move has lost, 0 on a full board, None if it goes on."""
        return _outcome(state, self._lines)

    def observation(self, state: Board) -> npt.NDArray[np.float32]:
        """Return the mover's stones and the other's, `[2, 6, 7]`."""
        return _planes(state)


def _outcome(board: Board, lines: npt.NDArray[np.int64]) -> float | None:
    # Only who moved last can have completed a line, and that is the other player: −1 each.
    flat = board.ravel()
    if int(flat[lines].sum(1, dtype=np.int8).min()) == -lines.shape[1]:
        return -1.0
    return None if (flat == 0).any() else 0.0


def _planes(board: Board) -> npt.NDArray[np.float32]:
    return np.stack([board == 1, board == -1]).astype(np.float32)
