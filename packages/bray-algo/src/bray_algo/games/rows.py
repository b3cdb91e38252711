"""Boards `[H, W]` on which so many in a row win: 1 the mover's stones, −1 the other's, 0 empty."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Board = npt.NDArray[np.int8]


def winning_lines(height: int, width: int, length: int) -> npt.NDArray[np.int64]:
    """Return the cells of every line, `[L, length]`, as indices of the flat board."""
    lines = [
        [(row + k * down) * width + column + k * right for k in range(length)]
        for down, right in ((0, 1), (1, 0), (1, 1), (1, -1))
        for row in range(height)
        for column in range(width)
        if row + (length - 1) * down < height and 0 <= column + (length - 1) * right < width
    ]
    return np.array(lines)


def outcome(board: Board, lines: npt.NDArray[np.int64]) -> float | None:
    """Return −1 where the other player, who moved last, has a line, 0 on a full board, or None."""
    flat = board.ravel()
    if int(flat[lines].sum(1, dtype=np.int8).min()) == -lines.shape[1]:
        return -1.0
    return None if (flat == 0).any() else 0.0


def planes(board: Board) -> npt.NDArray[np.float32]:
    """Return the mover's stones and the other's, `[2, H, W]`."""
    return np.stack([board == 1, board == -1]).astype(np.float32)
