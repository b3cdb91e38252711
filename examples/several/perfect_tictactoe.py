"""Perfect play of PettingZoo's tic-tac-toe, for `goal.against: perfect_tictactoe.py:move`."""

from functools import cache

import numpy as np

from bray_algo.games import TicTacToe, solve


@cache
def _best_moves():
    return solve(TicTacToe())


def move(observation, generator):
    """Return one of the moves that no reply can punish, drawn evenly."""
    mine, other = np.moveaxis(np.asarray(observation["observation"], np.int8), -1, 0)
    best = _best_moves()[(mine - other).tobytes()]
    return int(generator.choice(np.flatnonzero(best)))
