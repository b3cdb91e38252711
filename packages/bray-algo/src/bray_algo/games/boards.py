"""Many boards of one game side by side, for self-play in batches: arrays in, arrays out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bray_algo.games.single_board import winning_lines

States = npt.NDArray[np.int8]
"""Boards `[N, H, W]`: 1 the mover's stones, −1 the other's, 0 empty, as in `single_board`."""


class Boards:
    """Rules of `length` in a row on `[height, width]` for N games at once.

    `Boards(3, 3, 3)` is `TicTacToe`, `Boards(6, 7, 4, falls=True)` is `ConnectFour`; states are
    values as there.

    Args:
        height: Number H of rows.
        width: Number W of columns.
        length: Stones in a row that win.
        falls: Whether an action is a column in which the stone falls; else it is a cell.

    Examples:
        >>> game = Boards(3, 3, 3)
        >>> states = game.step(game.initial(2), np.array([4, 0]))
        >>> game.legal(states).sum(1).tolist(), np.isnan(game.outcome(states)).tolist()
        ([8, 8], [True, True])
    """

    def __init__(self, height: int, width: int, length: int, *, falls: bool = False) -> None:
        self.shape = (height, width)
        self.falls = falls
        self.num_actions = width if falls else height * width
        self.max_moves = height * width
        self.observation_size = 2 * height * width
        self._lines = winning_lines(height, width, length)

    def initial(self, number: int) -> States:
        """Return N empty boards."""
        return np.zeros((number, *self.shape), np.int8)

    def legal(self, states: States) -> npt.NDArray[np.bool_]:
        """Return which actions may be taken, `[N, A]`."""
        cells = states[:, 0] if self.falls else states.reshape(len(states), -1)
        empty: npt.NDArray[np.bool_] = cells == 0
        return empty

    def step(self, states: States, actions: npt.NDArray[np.int64]) -> States:
        """Return the boards after one action each, `[N]`, seen by the other player.

        Raises:
            ValueError: an action is not legal; the message names the game.
        """
        games = np.arange(len(states))
        inside = (actions >= 0) & (actions < self.num_actions)
        legal = inside & self.legal(states)[games, np.where(inside, actions, 0)]
        if not legal.all():
            wrong = int(legal.argmin())
            raise ValueError(f"actions: expected legal ones, got {actions[wrong]} in game {wrong}")
        cells = actions
        if self.falls:
            height, width = self.shape
            used = np.count_nonzero(states[games, :, actions], axis=1)
            cells = (height - 1 - used) * width + actions
        after = -states
        after.reshape(len(states), -1)[games, cells] = -1
        return after

    def outcome(self, states: States) -> npt.NDArray[np.float64]:
        """Return the value of each game for its mover, `[N]`: −1 lost, 0 drawn, NaN: it goes on."""
        flat = states.reshape(len(states), -1)
        # A line of −1 alone is the other's, who moved last: only that one can have won.
        lowest = flat[:, self._lines].sum(2, dtype=np.int8).min(1)
        value = np.where((flat == 0).any(1), np.nan, 0.0)
        return np.where(lowest == -self._lines.shape[1], -1.0, value)

    def observation(self, states: States) -> npt.NDArray[np.float32]:
        """Return the mover's stones, then the other's, `[N, 2 H W]`."""
        flat = states.reshape(len(states), -1)
        return np.concatenate([flat == 1, flat == -1], 1).astype(np.float32)
