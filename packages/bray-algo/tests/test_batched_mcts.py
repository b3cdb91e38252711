"""Searches in lock-step against the search of one tree, and games replayed by the rules."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch

from bray_algo import mcts
from bray_algo.batched_mcts import search
from bray_algo.batched_self_play import SelfPlay
from bray_algo.board_network import BoardNetwork
from bray_algo.games import CONNECT_FOUR, TIC_TAC_TOE, ConnectFour, TicTacToe
from bray_algo.mcts import SearchConfig

QUIET = SearchConfig(num_simulations=60, leaves=1, noise_fraction=0)


def knowing(observation: Any, num_actions: int) -> tuple[Any, Any]:
    """Arbitrary, but a function of the position alone."""
    flat = observation.reshape(len(observation), -1)
    weights = np.sin(np.arange(flat.shape[1] * 10).reshape(-1, 10) * 1.7)
    features = np.tanh(flat @ weights)
    return features[:, :num_actions] * 3, features[:, 9]


@pytest.mark.parametrize(
    ("plain", "game"), [(TicTacToe(), TIC_TAC_TOE), (ConnectFour(), CONNECT_FOUR)]
)
def test_each_tree_is_that_of_the_serial_search(plain: Any, game: Any) -> None:
    rng = np.random.default_rng(0)
    evaluate = functools.partial(knowing, num_actions=game.num_actions)
    boards = []
    for moves in (0, 1, 3, 4, 5, 6):
        state = plain.initial()
        for _ in range(moves):
            after = plain.step(state, int(rng.choice(np.flatnonzero(plain.legal(state)))))
            state = after if plain.outcome(after) is None else state
        boards.append(state)
    visits = search(game, game.states(boards), evaluate, QUIET, rng)
    for board, row in zip(boards, visits, strict=True):
        tree = mcts.Tree(plain, board)
        mcts.search([tree], evaluate, QUIET, rng)
        assert row.tolist() == tree.visits.tolist()


def test_noise_follows_the_seed_and_spares_illegal_actions() -> None:
    game = TIC_TAC_TOE
    states = game.states([[[1, 0, 0], [0, -1, 0], [0, 0, 0]]] * 3)
    config = SearchConfig(num_simulations=40, noise_fraction=0.9)

    def visits(seed: int) -> Any:
        rng = np.random.default_rng(seed)
        uniform = lambda x: (np.zeros((len(x), 9)), np.zeros(len(x)))  # noqa: E731
        return search(game, states, uniform, config, rng)

    assert visits(1).tolist() == visits(1).tolist() != visits(2).tolist()
    assert len(set(map(tuple, visits(1).tolist()))) == 3
    assert not visits(1)[:, [0, 4]].any()
    assert (visits(1).sum(1) == 40).all()


def test_games_are_told_by_the_player_to_move() -> None:
    game, sizes = TIC_TAC_TOE, []

    def counting(observation: Any) -> Any:
        sizes.append(len(observation))
        return knowing(observation, 9)

    config = SearchConfig(num_simulations=16)
    rng = np.random.default_rng(0)
    players = SelfPlay(game, 12, config=config, rng=rng, num_random_moves=9)
    parts = [players.play(counting) for _ in range(14)]
    assert max(sizes) == 12
    observation, policy, outcome = (np.concatenate(column) for column in zip(*parts, strict=True))
    assert policy.sum(1) == pytest.approx(np.ones(len(policy)))
    boards = observation[:, 0] - observation[:, 1]
    assert not policy[boards.reshape(-1, 9) != 0].any()
    starts = np.flatnonzero(np.abs(boards).sum((1, 2)) == 0)
    assert len(starts) == players.games_ended > 12  # an ended game made room for another
    for start, end in zip(starts, [*starts[1:], len(boards)], strict=True):
        assert (outcome[start + 1 : end] == -outcome[start : end - 1]).all()
        for t in range(start, end - 1):  # a stone of the mover, seen from the other side
            assert (-boards[t + 1] - boards[t]).sum() == 1
        if end - start < 9:
            assert outcome[end - 1] == 1  # only the last mover can have won


def test_later_moves_are_the_searchs_best() -> None:
    game = TIC_TAC_TOE

    def first(seed: int) -> Any:
        players = SelfPlay(
            game, 1, config=QUIET, rng=np.random.default_rng(seed), num_random_moves=0
        )
        parts = [players.play(functools.partial(knowing, num_actions=9)) for _ in range(9)]
        return np.concatenate([part.observation for part in parts]).tolist()

    assert first(1) == first(2)  # nothing was drawn


def test_the_network_of_boards() -> None:
    outputs = BoardNetwork((6, 7), 7, hidden=(8,))(torch.ones(5, 2, 6, 7))
    assert outputs["logits"].shape == (5, 7)
    assert outputs["value"].shape == (5,)
    assert outputs["value"].abs().max() < 1
    with pytest.raises(ValueError, match="window: expected 3 or less, got 4"):
        BoardNetwork((3, 3), 9)
    with pytest.raises(ValueError, match="expected positive numbers"):
        BoardNetwork((6, 7), 7, hidden=())


@pytest.mark.parametrize(
    ("evaluate", "message"),
    [
        (lambda x: (np.zeros((len(x), 8)), np.zeros(len(x))), r"expected logits \(1, 9\)"),
        (lambda x: (np.zeros((len(x), 9)), np.zeros((len(x), 1))), r"values \(1,\), got \(1, 9\)"),
        (lambda x: (np.full((len(x), 9), np.nan), np.zeros(len(x))), "evaluate: expected finite"),
        (lambda x: (np.zeros((len(x), 9)), np.full(len(x), np.nan)), "evaluate: expected finite"),
    ],
)
def test_a_bad_function_is_refused(evaluate: Any, message: str) -> None:
    game = TIC_TAC_TOE
    with pytest.raises(ValueError, match=message):
        search(game, game.initial(1), evaluate, QUIET, np.random.default_rng(0))


def test_nonsense_is_refused() -> None:
    game, rng = TIC_TAC_TOE, np.random.default_rng(0)
    won = game.states([[[-1, -1, -1], [1, 1, 0], [0, 0, 0]]])
    with pytest.raises(ValueError, match="states: expected games that go on"):
        search(game, won, functools.partial(knowing, num_actions=9), QUIET, rng)
    with pytest.raises(ValueError, match="num_games: expected 1 or more, got 0"):
        SelfPlay(game, 0, config=QUIET, rng=rng)
