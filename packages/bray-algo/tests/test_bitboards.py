"""Many boards at a time against the plain rules, and the opponents on them against minimax."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bray_algo.games import (
    CONNECT_FOUR,
    TIC_TAC_TOE,
    ConnectFour,
    RowGame,
    TicTacToe,
    action_values,
    best_actions,
    minimax,
    open_rows,
    play_match,
)

GAMES: dict[str, tuple[Any, RowGame]] = {
    "tic-tac-toe": (TicTacToe(), TIC_TAC_TOE),
    "connect four": (ConnectFour(), CONNECT_FOUR),
}


def played(game: Any, moves: int, rng: np.random.Generator) -> Any:
    """A board after so many random moves, or fewer where the game ends by the last of them."""
    state = game.initial()
    for _ in range(moves):
        after = game.step(state, int(rng.choice(np.flatnonzero(game.legal(state)))))
        if game.outcome(after) is not None:
            break
        state = after
    return state


@pytest.mark.parametrize("name", GAMES)
@settings(max_examples=10)
@given(seed=st.integers(0, 10**6))
def test_many_boards_follow_the_plain_rules(name: str, seed: int) -> None:
    plain, game = GAMES[name]
    rng = np.random.default_rng(seed)
    boards = [plain.initial() for _ in range(8)]
    states = game.initial(8)
    while boards:
        assert (game.states(boards) == states).all()
        assert (game.observation(states) == [plain.observation(b) for b in boards]).all()
        legal = game.legal(states)
        assert (legal == [plain.legal(b) for b in boards]).all()
        actions = [int(rng.choice(np.flatnonzero(row))) for row in legal]
        boards = [plain.step(b, a) for b, a in zip(boards, actions, strict=True)]
        before = states.copy()
        states, last = game.step(states, np.array(actions)), states
        assert (last == before).all()  # a step changes no state
        ended = [plain.outcome(b) for b in boards]
        want = [np.nan if value is None else value for value in ended]
        np.testing.assert_array_equal(game.outcome(states), want)
        going = [i for i, value in enumerate(ended) if value is None]
        boards, states = [boards[i] for i in going], states[going]


@pytest.mark.parametrize("name", GAMES)
def test_a_symmetry_turns_a_game_into_a_game(name: str) -> None:
    plain, game = GAMES[name]
    rng = np.random.default_rng(0)
    boards = np.stack([played(plain, 5, rng) for _ in range(20)])
    states = game.states(boards)
    values = action_values(game, states, 3)
    seen = set()
    for cells, actions in game.symmetries():
        turned = game.states(boards.reshape(20, -1)[:, cells].reshape(boards.shape))
        assert (game.legal(turned) == game.legal(states)[:, actions]).all()
        assert action_values(game, turned, 3) == pytest.approx(values[:, actions])
        seen.add(tuple(cells.tolist()))
    assert len(seen) == (8 if name == "tic-tac-toe" else 2)


def test_rows_that_could_win() -> None:
    assert len(TIC_TAC_TOE.lines()) == 8
    game = CONNECT_FOUR
    assert len(game.lines()) == 69
    assert game.rows(game.lines()).all()
    assert len(RowGame(4, 5, 3, falls=False).symmetries()) == 4


@pytest.mark.parametrize("name", GAMES)
@settings(max_examples=10)
@given(seed=st.integers(0, 10**6), moves=st.integers(4, 8))
def test_values_are_those_of_minimax(name: str, seed: int, moves: int) -> None:
    plain, game = GAMES[name]
    rng = np.random.default_rng(seed)
    boards = np.stack([played(plain, moves, rng) for _ in range(4)])
    values = action_values(game, game.states(boards), 4)
    assert (np.isfinite(values) == game.legal(game.states(boards))).all()
    best = best_actions(values, rng)
    for board, row, action in zip(boards, values, best.tolist(), strict=True):
        want, _ = minimax(plain, board, 4)
        assert np.sign(row.max()) == want
        assert row[action] == row.max()


def test_a_win_at_once_is_better_than_a_late_one() -> None:
    plain, game = ConnectFour(), CONNECT_FOUR
    state = plain.initial()
    for action in (3, 0, 3, 0, 3, 0):
        state = plain.step(state, action)
    values = action_values(game, game.states([state]), 4)[0]
    assert values.argmax() == 3
    assert values[3] == pytest.approx(2 - 1 / 5)
    assert values[6] == pytest.approx(-(2 - 2 / 5))  # then the other wins with its second move


def test_equals_are_chosen_at_random() -> None:
    rng = np.random.default_rng(0)
    values = np.array([[0.0, 1, -np.inf, 1, 1]] * 300)
    counts = np.bincount(best_actions(values, rng), minlength=5)
    assert counts[[0, 2]].tolist() == [0, 0]
    assert counts[[1, 3, 4]].min() > 60


def test_the_heuristic_counts_open_rows() -> None:
    plain, game = ConnectFour(), CONNECT_FOUR
    value = open_rows(game)
    middle, edge = (game.states([-plain.step(plain.initial(), a)]) for a in (3, 0))
    assert value(game.initial(1)) == 0
    assert value(middle) > value(edge) > 0
    assert value(middle[:, ::-1]) == -value(middle)
    assert action_values(game, game.initial(1), 1, value)[0].argmax() == 3  # no longer all the same
    assert not action_values(game, game.initial(1), 2).any()


def test_perfect_players_draw_and_beat_a_random_one() -> None:
    game, rng = TIC_TAC_TOE, np.random.default_rng(0)

    def perfect(states: Any) -> Any:
        return best_actions(action_values(game, states, 9), rng)

    def any_legal(states: Any) -> Any:
        return best_actions(np.where(game.legal(states), 0.0, -np.inf), rng)

    assert play_match(game, perfect, perfect, 8).tolist() == [0.0] * 8
    outcomes = play_match(game, perfect, any_legal, 40)
    assert outcomes.min() == 0
    assert (outcomes == 1).mean() > 0.6
    assert play_match(game, any_legal, perfect, 40).max() <= 0
    begins = play_match(game, lambda s: game.legal(s).argmax(1), any_legal, 2)
    assert begins.shape == (2,)


def test_nonsense_is_refused() -> None:
    game = TIC_TAC_TOE
    with pytest.raises(ValueError, match="height, width, length: expected positive numbers"):
        RowGame(8, 8, 4, falls=False)
    with pytest.raises(ValueError, match="depth: expected 1 or more, got 0"):
        action_values(game, game.initial(1), 0)
    won = game.states([[[-1, -1, -1], [1, 1, 0], [0, 0, 0]]])
    with pytest.raises(ValueError, match="states: expected games that go on"):
        action_values(game, won, 1)
    with pytest.raises(ValueError, match="num_games: expected 1 or more, got 0"):
        play_match(game, lambda s: s[:, 0], lambda s: s[:, 0], 0)
