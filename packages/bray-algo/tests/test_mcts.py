"""The search against the paper's, plainly written, against minimax, and forced wins."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest

from bray_algo.games import (
    CONNECT_FOUR,
    TIC_TAC_TOE,
    ConnectFour,
    RowGame,
    TicTacToe,
    minimax,
    play_match,
    solve,
)
from bray_algo.search.mcts import SearchConfig, search

QUIET = SearchConfig(num_simulations=200, noise_fraction=0)


def uniform(observation: Any, num_actions: int = 9) -> tuple[Any, Any]:
    """No knowledge: all actions alike, every value a draw."""
    return np.zeros((len(observation), num_actions)), np.zeros(len(observation))


def knowing(observation: Any, num_actions: int = 9) -> tuple[Any, Any]:
    """Arbitrary, but a function of the position alone."""
    flat = observation.reshape(len(observation), -1)
    weights = np.sin(np.arange(flat.shape[1] * 10).reshape(-1, 10) * 1.7)
    features = np.tanh(flat @ weights)
    return features[:, :num_actions] * 3, features[:, 9]


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def after(game: Any, actions: list[int]) -> Any:
    return functools.reduce(game.step, actions, game.initial())


def searched(
    game: RowGame, board: Any, config: SearchConfig = QUIET, evaluate: Any = uniform
) -> Any:
    return search(game, game.states([board]), evaluate, config, rng())[0]


def plain_search(game: Any, state: Any, evaluate: Any, num: int) -> dict[int, int]:
    """AlphaZero's serial search with dictionaries, straight from the paper: visits at the root."""
    stats: dict[tuple[int, ...], Any] = {}

    def visit(path: tuple[int, ...], state: Any) -> float:
        ended = game.outcome(state)
        if ended is not None:
            return float(ended)
        if path not in stats:
            logits, value = (x[0] for x in evaluate(game.observation(state)[None]))
            legal = np.flatnonzero(game.legal(state)).tolist()
            total = sum(math.exp(logits[a]) for a in legal)
            stats[path] = {a: [math.exp(logits[a]) / total, 0, 0.0] for a in legal}
            return float(value)
        edges = stats[path]
        visits = 1 + sum(edge[1] for edge in edges.values())
        c = math.log((1 + visits + 19652) / 19652) + 1.25

        def score(a: int) -> float:
            p, n, w = edges[a]
            return float((w / n if n else 0) + c * p * math.sqrt(visits) / (1 + n))

        action = max(edges, key=score)
        value = -visit((*path, action), game.step(state, action))
        edges[action][1] += 1
        edges[action][2] += value
        return value

    for _ in range(num + 1):  # the first expands the root
        visit((), state)
    return {a: edge[1] for a, edge in stats[()].items()}


@pytest.mark.parametrize(
    ("plain", "game"), [(TicTacToe(), TIC_TAC_TOE), (ConnectFour(), CONNECT_FOUR)]
)
def test_each_tree_is_that_of_the_papers_serial_search(plain: Any, game: Any) -> None:
    draws = np.random.default_rng(0)
    evaluate = functools.partial(knowing, num_actions=game.num_actions)
    boards = []
    for moves in (0, 1, 3, 4, 5, 6):
        state = plain.initial()
        for _ in range(moves):
            following = plain.step(state, int(draws.choice(np.flatnonzero(plain.legal(state)))))
            state = following if plain.outcome(following) is None else state
        boards.append(state)
    config = SearchConfig(num_simulations=150, noise_fraction=0)
    visits = search(game, game.states(boards), evaluate, config, rng())
    for board, row in zip(boards, visits, strict=True):
        want = plain_search(plain, board, evaluate, 150)
        assert {a: int(row[a]) for a in want} == want
        assert row.sum() == 150


@functools.cache
def perfect_moves() -> dict[bytes, Any]:
    return solve(TicTacToe())


def test_it_never_loses_tic_tac_toe_to_a_perfect_player() -> None:
    game, draws = TIC_TAC_TOE, np.random.default_rng(1)
    config = SearchConfig(num_simulations=1600, noise_fraction=0, c_init=0.5)

    def searching(states: Any) -> Any:
        return search(game, states, uniform, config, rng()).argmax(1)

    def perfect(states: Any) -> Any:
        planes = game.observation(states)
        boards = (planes[:, 0] - planes[:, 1]).astype(np.int8)
        moves = [np.flatnonzero(perfect_moves()[board.tobytes()]) for board in boards]
        return np.array([draws.choice(best) for best in moves])

    assert play_match(game, searching, perfect, 24).tolist() == [0] * 24


def best_answer(game: Any, state: Any, depth: int) -> float:
    """Plain minimax without pruning."""
    ended = game.outcome(state)
    if ended is not None or not depth:
        return ended or 0
    actions = np.flatnonzero(game.legal(state)).tolist()
    return max(-best_answer(game, game.step(state, a), depth - 1) for a in actions)


def test_it_finds_a_forced_win_in_two() -> None:
    """Two stones in a row with both sides open: the third wins whatever the answer."""
    game = ConnectFour()
    state = after(game, [3, 3, 2, 2])  # bottom row: 2 and 3 are ours
    wins = [a for a in range(7) if -best_answer(game, game.step(state, a), 2) == 1]
    assert minimax(game, state, 3)[0] == 1
    config = SearchConfig(num_simulations=600, noise_fraction=0)
    evaluate = functools.partial(uniform, num_actions=7)
    assert int(searched(CONNECT_FOUR, state, config, evaluate).argmax()) in wins


def test_small_trees_tend_to_minimax() -> None:
    game, draw, boards = TicTacToe(), np.random.default_rng(3), []
    while len(boards) < 20:
        actions = draw.permutation(9)[:5].tolist()
        states = [after(game, actions[:k]) for k in range(6)]
        if all(game.outcome(state) is None for state in states):
            boards.append(states[-1])
    config = SearchConfig(num_simulations=2000, noise_fraction=0, c_init=0.5)
    visits = search(TIC_TAC_TOE, TIC_TAC_TOE.states(boards), uniform, config, rng())
    for board, action in zip(boards, visits.argmax(1).tolist(), strict=True):
        legal = np.flatnonzero(game.legal(board)).tolist()
        exact = {a: -best_answer(game, game.step(board, a), 9) for a in legal}
        assert exact[action] == max(exact.values())


def test_noise_follows_the_seed_and_spares_illegal_actions() -> None:
    states = TIC_TAC_TOE.states([[[1, 0, 0], [0, -1, 0], [0, 0, 0]]] * 3)
    config = SearchConfig(num_simulations=40, noise_fraction=0.9)

    def visits(seed: int) -> Any:
        return search(TIC_TAC_TOE, states, uniform, config, np.random.default_rng(seed))

    assert visits(1).tolist() == visits(1).tolist() != visits(2).tolist()
    assert len(set(map(tuple, visits(1).tolist()))) == 3
    assert not visits(1)[:, [0, 4]].any()
    assert (visits(1).sum(1) == 40).all()


def test_one_legal_action_is_taken() -> None:
    state = after(TicTacToe(), [0, 1, 2, 4, 3, 5, 7, 6])
    assert searched(TIC_TAC_TOE, state, SearchConfig(num_simulations=3))[8] == 3


def test_logits_of_illegal_actions_are_any() -> None:
    board = after(TicTacToe(), [0, 4])

    def masking(observation: Any) -> Any:
        logits, values = knowing(observation)
        taken = observation.sum(1).reshape(-1, 9) > 0
        return np.where(taken, -np.inf, logits), values

    want = searched(TIC_TAC_TOE, board, evaluate=knowing).tolist()
    assert searched(TIC_TAC_TOE, board, evaluate=masking).tolist() == want


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
    with pytest.raises(ValueError, match=message):
        search(TIC_TAC_TOE, TIC_TAC_TOE.initial(1), evaluate, QUIET, rng())


def test_nonsense_is_refused() -> None:
    won = after(TicTacToe(), [0, 3, 1, 4, 2])
    with pytest.raises(ValueError, match="states: expected games that go on"):
        searched(TIC_TAC_TOE, won)
    for field, value in [
        ("num_simulations", 0),
        ("c_init", math.inf),
        ("c_base", 0),
        ("noise_alpha", 0),
        ("noise_fraction", 2),
    ]:
        with pytest.raises(ValueError, match=f"{field}: expected"):
            SearchConfig(**{field: value})


class Stuck(RowGame):
    """Rules with a fault: in no state is anything legal."""

    def legal(self, states: Any) -> Any:
        return np.zeros((len(states), 9), bool)


def test_a_game_without_a_legal_action_is_refused() -> None:
    game = Stuck(3, 3, 3, falls=False)
    with pytest.raises(ValueError, match="legal: expected a legal action"):
        search(game, game.initial(1), uniform, QUIET, rng())
