"""Games of so many in a row on bitboards (a board is two integers), many boards at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bray_algo.games.rules import States

Ints = npt.NDArray[np.int64]


class RowGame:
    """A `PlanesGame` of boards `[H, W]` on which `length` stones in a row win.

    A state is two numbers, the mover's stones and the other's: bit `(H + 1) · column + H − 1 − row`
    is a cell, and the bit above each column stays empty, so that no row runs from one column's
    end into the next (J. Tromp's "Fhourstones").

    Args:
        height: Number H of rows; row 0 is on top.
        width: Number W of columns, (H + 1) · W at most 63.
        length: Stones in a row that win.
        falls: Whether stones fall, and the action is the column; else it is the cell
            row · W + column.

    Raises:
        ValueError: the board does not fit 63 bits, or a number is not positive.
    """

    def __init__(self, height: int, width: int, length: int, *, falls: bool) -> None:
        if min(height, width, length) < 1 or (height + 1) * width > 63:
            raise ValueError(
                "height, width, length: expected positive numbers and (height + 1) * width of 63 "
                f"or less, got {height}, {width}, {length}"
            )
        self.shape = height, width
        self.falls = falls
        self.num_actions = width if falls else height * width
        self.max_moves = height * width
        self.length = self.window = length
        rows, columns = np.indices(self.shape)
        self._bits: Ints = (height + 1) * columns + height - 1 - rows
        self._full = int((1 << self._bits).sum())
        self._directions = (1, height, height + 1, height + 2)
        # Of each action: the cell, or the column's lowest and highest one and all of it.
        self._cells = 1 << (self._bits[-1] if falls else self._bits.ravel())
        self._tops = 1 << (self._bits[0] if falls else self._bits.ravel())
        self._columns = (1 << self._bits).sum(0)

    def initial(self, num: int) -> States:
        """Return empty boards, `[num, 2]`."""
        return np.zeros((num, 2), np.int64)

    def legal(self, states: States) -> npt.NDArray[np.bool_]:
        """Return which columns have room, or which cells are empty, `[N, A]`."""
        occupied = states[:, 0] | states[:, 1]
        legal: npt.NDArray[np.bool_] = (occupied[:, None] & self._tops) == 0
        return legal

    def step(self, states: States, actions: Ints) -> States:
        """Return the boards after a stone each; actions are not checked."""
        stones = self._cells[actions]
        if self.falls:  # the lowest empty bit of the column
            occupied = states[:, 0] | states[:, 1]
            stones = (occupied + stones) & self._columns[actions] & ~occupied
        after = states[:, ::-1].copy()
        after[:, 1] |= stones
        return after

    def outcome(self, states: States) -> npt.NDArray[np.float64]:
        """Return −1 lost, 0 drawn, NaN not ended, `[N]`."""
        drawn = (states[:, 0] | states[:, 1]) == self._full
        return np.where(self.rows(states[:, 1]), -1.0, np.where(drawn, 0.0, np.nan))

    def rows(self, stones: Ints) -> npt.NDArray[np.bool_]:
        """Return whether the stones of one player hold a winning row, `[N]`."""
        found = np.zeros(stones.shape, np.bool_)
        for direction in self._directions:
            runs = stones
            for k in range(1, self.length):
                # A bit survives if each of its neighbours in this direction holds a stone, too.
                runs = runs & (stones >> (k * direction))
            found |= runs != 0
        return found

    def lines(self) -> Ints:
        """Return every row of cells that would win, as bits, `[L]`."""
        found = [
            line
            for direction in self._directions
            for cell in self._bits.ravel().tolist()
            if (line := sum(1 << (cell + k * direction) for k in range(self.length))) & ~self._full
            == 0
        ]
        return np.array(found)

    def observation(self, states: States) -> npt.NDArray[np.float32]:
        """Return the mover's stones and the other's, `[N, 2, H, W]`."""
        return ((states[:, :, None, None] >> self._bits) & 1).astype(np.float32)

    def states(self, boards: npt.ArrayLike) -> States:
        """Return the states of boards `[N, H, W]`, 1 the mover's stones, −1 the other's."""
        cells = np.asarray(boards)
        stones = [((cells == sign) << self._bits).sum((1, 2)) for sign in (1, -1)]
        return np.stack(stones, 1)

    def symmetries(self) -> list[tuple[Ints, Ints]]:
        """Return the turns and mirror images of the board; see `PlanesGame`."""
        cells = np.arange(self.max_moves).reshape(self.shape)
        if self.falls:
            columns = np.arange(self.num_actions)
            return [(cells.ravel(), columns), (cells[:, ::-1].ravel(), columns[::-1].copy())]
        turns = range(4) if self.shape[0] == self.shape[1] else (0, 2)
        turned = [np.rot90(board, k).ravel() for board in (cells, cells[:, ::-1]) for k in turns]
        return [(each, each) for each in turned]


CONNECT_FOUR = RowGame(6, 7, 4, falls=True)
"""The rules of `ConnectFour` for many boards."""

TIC_TAC_TOE = RowGame(3, 3, 3, falls=False)
"""The rules of `TicTacToe` for many boards."""
