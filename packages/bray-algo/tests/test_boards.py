"""Games side by side against the same games one by one, and perfect moves against a search."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bray_algo.games import Boards, ConnectFour, TicTacToe, minimax, solve

GAMES: Any = {
    "tic-tac-toe": (TicTacToe(), Boards(3, 3, 3)),
    "connect four": (ConnectFour(), Boards(6, 7, 4, falls=True)),
}


@pytest.mark.parametrize("name", GAMES)
def test_games_side_by_side_are_the_games_one_by_one(name: str) -> None:
    one, many = GAMES[name]
    rng = np.random.default_rng(0)
    states = many.initial(64)
    assert (states[0] == one.initial()).all()
    assert many.num_actions == one.num_actions
    moves = 0
    while len(states):
        legal = many.legal(states)
        actions = np.array([rng.choice(np.flatnonzero(row)) for row in legal])
        before = states.copy()
        after = many.step(states, actions)
        assert (states == before).all()
        for state, row, action, following in zip(states, legal, actions, after, strict=True):
            assert (row == one.legal(state)).all()
            assert (following == one.step(state, int(action))).all()
        outcomes = many.outcome(after)
        for state, outcome in zip(after, outcomes, strict=True):
            assert one.outcome(state) == (None if np.isnan(outcome) else outcome)
        seen = many.observation(after)
        assert seen.shape == (len(after), many.observation_size)
        assert (seen.reshape(len(after), 2, *many.shape)[0] == one.observation(after[0])).all()
        states = after[np.isnan(outcomes)]
        moves += 1
    assert moves <= many.max_moves


@pytest.mark.parametrize("name", GAMES)
def test_an_illegal_action_is_named(name: str) -> None:
    game = GAMES[name][1]
    for action in (-1, game.num_actions):
        with pytest.raises(ValueError, match=rf"expected legal ones, got {action} in game 1"):
            game.step(game.initial(2), np.array([0, action]))
    states = game.initial(1)
    for _ in range(game.shape[0] if game.falls else 1):
        states = game.step(states, np.array([2]))
    with pytest.raises(ValueError, match="got 2 in game 0"):
        game.step(states, np.array([2]))


def test_perfect_moves_are_those_that_a_search_gives_the_best_value() -> None:
    game = TicTacToe()
    perfect = solve(game)
    assert len(perfect) == 4520  # the 5478 reachable states less 958 that have ended
    assert perfect[game.initial().tobytes()].all()  # any first move draws
    rng = np.random.default_rng(0)
    states = [np.frombuffer(key, np.int8).reshape(3, 3) for key in perfect]
    for at in rng.choice(len(states), 40, replace=False):
        state = states[at]
        best, _ = minimax(game, state)
        for action in np.flatnonzero(game.legal(state)):
            after = game.step(state, int(action))
            ended = game.outcome(after)
            value = -(minimax(game, after)[0] if ended is None else ended)
            assert perfect[state.tobytes()][action] == (value == best)
        assert not perfect[state.tobytes()][~game.legal(state)].any()
