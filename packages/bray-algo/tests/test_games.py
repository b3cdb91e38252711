"""Rules of the board games against plain ones, and minimax as a benchmark opponent."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bray_algo.games import ConnectFour, TicTacToe, minimax

GAMES = {"tic-tac-toe": (TicTacToe(), 3), "connect four": (ConnectFour(), 4)}


def has_row(board: Any, stone: int, length: int) -> bool:
    """Walk from every cell in every direction."""
    height, width = board.shape
    for r in range(height):
        for c in range(width):
            for dr, dc in ((0, 1), (1, 0), (1, 1), (1, -1)):
                cells = [(r + k * dr, c + k * dc) for k in range(length)]
                inside = all(0 <= a < height and 0 <= b < width for a, b in cells)
                if inside and all(board[a, b] == stone for a, b in cells):
                    return True
    return False


@pytest.mark.parametrize("name", GAMES)
@settings(max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_random_games_are_judged_as_by_walking_the_board(name: str, seed: int) -> None:
    game, length = GAMES[name]
    rng = np.random.default_rng(seed)
    state = game.initial()
    for move in range(43):
        lost, won = has_row(state, -1, length), has_row(state, 1, length)
        full = not game.legal(state).any()
        assert not won  # the mover cannot have a row: the game would have ended before
        assert game.outcome(state) == (-1 if lost else 0 if full else None)
        assert (state != 0).sum() == move
        if game.outcome(state) is not None:
            break
        action = int(rng.choice(np.flatnonzero(game.legal(state))))
        before = state.copy()
        after = game.step(state, action)
        assert (state == before).all()  # a step changes no state
        assert (after != -state).sum() == 1
        seen = game.observation(after)
        assert seen.dtype == np.float32
        assert (seen[0] - seen[1] == after).all()
        state = after
    else:
        pytest.fail("a game has an end")


def test_stones_fall() -> None:
    game = ConnectFour()
    state = game.initial()
    for _ in range(6):
        state = game.step(state, 3)
    assert state[:, 3].tolist() == [-1, 1, -1, 1, -1, 1]
    assert game.legal(state).tolist() == [True, True, True, False, True, True, True]
    with pytest.raises(ValueError, match="action: expected a column with room, 0 to 6, got 3"):
        game.step(state, 3)
    with pytest.raises(ValueError, match="action: expected an empty cell, 0 to 8, got 0"):
        TicTacToe().step(TicTacToe().step(TicTacToe().initial(), 0), 0)
    for each in (game, TicTacToe()):
        for action in (-1, each.num_actions):
            with pytest.raises(ValueError, match=f"got {action}"):
                each.step(each.initial(), action)


@functools.cache
def solved(cells: tuple[int, ...]) -> int:
    """The value of a tic-tac-toe board for its mover, by the definition."""
    board = np.array(cells).reshape(3, 3)
    if has_row(board, -1, 3):
        return -1
    empty = [i for i, cell in enumerate(cells) if not cell]
    if not empty:
        return 0
    after = [tuple(-1 if k == i else -cell for k, cell in enumerate(cells)) for i in empty]
    return max(-solved(cells) for cells in after)


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(0, 8))
def test_minimax_is_the_definition(seed: int, moves: int) -> None:
    rng = np.random.default_rng(seed)
    game = TicTacToe()
    state = game.initial()
    for _ in range(moves):
        state = game.step(state, int(rng.choice(np.flatnonzero(game.legal(state)))))
        if game.outcome(state) is not None:
            return
    if moves < 3:  # the first moves take seconds
        state = game.step(game.step(game.step(game.initial(), 0), 4), 8)
    want = solved(tuple(state.ravel().tolist()))
    for depth in (None, 9):
        value, action = minimax(game, state, depth, rng)
        assert value == want
        if depth is None:
            assert -solved(tuple(game.step(state, action).ravel().tolist())) == want


def test_minimax_wins_the_shortest_way_and_loses_the_longest() -> None:
    game = ConnectFour()
    state = game.initial()
    for action in (3, 0, 3, 0, 3, 0):  # both have three in a column; 3 is to move
        state = game.step(state, action)
    assert minimax(game, state, 4) == (1, 3)
    state = game.step(state, 6)  # did not: now 0 wins at once
    assert minimax(game, state, 4) == (1, 0)
    state = game.initial()
    for action in (3, 0, 3, 6, 3):  # the mover must stop the column 3
        state = game.step(state, action)
    assert minimax(game, state, 2)[1] == 3


def test_equals_are_chosen_at_random() -> None:
    game, rng = TicTacToe(), np.random.default_rng(0)
    state = game.step(game.step(game.initial(), 4), 0)
    chosen = {minimax(game, state, 2, rng)[1] for _ in range(40)}
    assert len(chosen) > 4
    assert len({minimax(game, state, 2)[1] for _ in range(3)}) == 1


def test_nonsense_is_refused() -> None:
    game = TicTacToe()
    with pytest.raises(ValueError, match="depth: expected 1 or more, got 0"):
        minimax(game, game.initial(), 0)
    with pytest.raises(ValueError, match="state: expected a game that goes on"):
        minimax(game, np.full((3, 3), -1, np.int8))
