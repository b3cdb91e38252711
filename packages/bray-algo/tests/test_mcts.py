"""The search against minimax, a plain recursion over its own tree, and forced wins."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bray_algo.games import ConnectFour, TicTacToe, minimax
from bray_algo.mcts import Node, SearchConfig, Tree, search

QUIET = SearchConfig(num_simulations=200, noise_fraction=0)


CELLS = np.arange(9).reshape(3, 3)


def uniform(observation: Any) -> tuple[Any, Any]:
    """No knowledge: all actions alike, every value a draw."""
    n = len(observation)
    return np.zeros((n, observation.shape[-1] if observation.shape[-1] == 7 else 9)), np.zeros(n)


def knowing(observation: Any) -> tuple[Any, Any]:
    """Arbitrary, but a function of the position alone."""
    flat = observation.reshape(len(observation), -1)
    weights = np.sin(np.arange(flat.shape[1] * 10).reshape(-1, 10) * 1.7)
    features = np.tanh(flat @ weights)
    return features[:, :9] * 3, features[:, 9]


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def searched(game: Any, state: Any, config: SearchConfig = QUIET, evaluate: Any = uniform) -> Any:
    tree = Tree(game, state)
    search([tree], evaluate, config, rng())
    return tree


def after(game: Any, actions: list[int]) -> Any:
    return functools.reduce(game.step, actions, game.initial())


TURNS = [np.rot90(m, k).ravel() for m in (CELLS, CELLS.T) for k in range(4)]
"""The eight symmetries of the board: the cell that each cell is taken from."""


def test_it_never_loses_tic_tac_toe_to_a_perfect_player() -> None:
    game, draws = TicTacToe(), np.random.default_rng(1)
    config = SearchConfig(num_simulations=1600, noise_fraction=0, c_init=0.5)

    @functools.cache  # without noise the search of a position is the same each time
    def searched_once(cells: bytes) -> int:
        state = np.frombuffer(cells, np.int8).reshape(3, 3)
        return int(searched(game, state, config).policy(0).argmax())

    def searching(state: Any) -> int:
        turned, index = min((state.ravel()[turn].tobytes(), i) for i, turn in enumerate(TURNS))
        return int(TURNS[index][searched_once(turned)])

    @functools.cache
    def value(cells: bytes) -> float:
        return minimax(game, np.frombuffer(cells, np.int8).reshape(3, 3))[0]

    def perfect(state: Any) -> int:
        after = {a: game.step(state, a) for a in np.flatnonzero(game.legal(state)).tolist()}
        values = {
            a: -(value(s.tobytes()) if game.outcome(s) is None else game.outcome(s))  # type: ignore[operator]
            for a, s in after.items()
        }
        best = [a for a, v in values.items() if v == max(values.values())]
        return int(draws.choice(best))

    ends = []
    for i in range(50):
        state, is_ours = game.initial(), i % 2 == 0
        while (ended := game.outcome(state)) is None:
            state = game.step(state, searching(state) if is_ours else perfect(state))
            is_ours = not is_ours
        ends.append(ended if is_ours else -ended)
    assert ends == [0] * 50


@pytest.mark.parametrize("leaves", [1, 8])
def test_it_finds_a_forced_win_in_two(leaves: int) -> None:
    """Two stones in a row with both sides open: the third wins whatever the answer."""
    game = ConnectFour()
    state = after(game, [3, 3, 2, 2])  # bottom row: 2 and 3 are ours
    wins = [a for a in range(7) if -best_answer(game, game.step(state, a), 2) == 1]
    assert minimax(game, state, 3)[0] == 1
    config = SearchConfig(num_simulations=600, leaves=leaves, noise_fraction=0)
    tree = searched(game, state, config)
    assert int(tree.policy(0).argmax()) in wins
    assert tree.values[wins].max() > 0.4


def best_answer(game: Any, state: Any, depth: int) -> float:
    """Plain minimax without pruning."""
    ended = game.outcome(state)
    if ended is not None or not depth:
        return ended or 0
    actions = np.flatnonzero(game.legal(state)).tolist()
    return max(-best_answer(game, game.step(state, a), depth - 1) for a in actions)


@settings(max_examples=10)
@given(st.integers(0, 10**6))
def test_values_of_small_trees_tend_to_minimax(seed: int) -> None:
    game, draw = TicTacToe(), np.random.default_rng(seed)
    state = game.initial()
    for _ in range(5):
        state = game.step(state, int(draw.choice(np.flatnonzero(game.legal(state)))))
        if game.outcome(state) is not None:
            return
    config = SearchConfig(num_simulations=2000, noise_fraction=0, c_init=0.5)
    tree = searched(game, state, config)
    exact = {
        a: -best_answer(game, game.step(state, a), 9)
        for a in np.flatnonzero(game.legal(state)).tolist()
    }
    chosen = int(tree.policy(0).argmax())
    assert exact[chosen] == max(exact.values())
    assert tree.values[chosen] == pytest.approx(exact[chosen], abs=0.1)


def backed_up(node: Node[Any], evaluate: Any, game: Any) -> tuple[float, float]:
    """Sum of the values of all visits to a node, for its mover, and their number, by recursion."""
    if node.outcome is not None:
        return node.outcome, 1
    own = float(evaluate(game.observation(node.state)[None])[1][0])
    total, number = own, 1.0
    for child, visits, value_sum in zip(node.children, node.visits, node.value_sum, strict=True):
        if child is None or (not len(child.actions) and child.outcome is None):
            assert visits == value_sum == 0  # never seen, or not evaluated
            continue
        below, times = backed_up(child, evaluate, game)
        if child.outcome is not None:  # each visit counts the outcome again
            below, times = below * visits, visits
        assert visits == times
        assert value_sum == pytest.approx(-below, abs=1e-9)
        total, number = total - below, number + times
    return total, number


@pytest.mark.parametrize("leaves", [1, 7])
@pytest.mark.parametrize("virtual_loss", [0.0, 1.0, 3.0])
def test_each_node_holds_the_sum_of_what_lies_below(leaves: int, virtual_loss: float) -> None:
    game = TicTacToe()
    config = SearchConfig(num_simulations=300, leaves=leaves, virtual_loss=virtual_loss)
    tree = searched(game, after(game, [0, 4]), config, knowing)
    _, number = backed_up(tree.root, knowing, game)
    assert number == 1 + 300
    assert tree.visits.sum() == 300


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


@pytest.mark.parametrize("actions", [[], [4, 0, 8], [0, 1, 2, 4]])
def test_the_serial_search_is_the_papers(actions: list[int]) -> None:
    game = TicTacToe()
    state = after(game, actions)
    config = SearchConfig(num_simulations=150, leaves=1, noise_fraction=0)
    tree = searched(game, state, config, knowing)
    want = plain_search(game, state, knowing, 150)
    assert {a: int(tree.visits[a]) for a in want} == want


def test_batches_join_the_leaves_of_all_trees() -> None:
    game, sizes = TicTacToe(), []

    def counting(observation: Any) -> tuple[Any, Any]:
        sizes.append(len(observation))
        return uniform(observation)

    trees = [Tree(game, after(game, [i])) for i in range(9)]
    config = SearchConfig(num_simulations=60, leaves=6, noise_fraction=0)
    search(trees, counting, config, rng())
    assert all(tree.visits.sum() == 60 for tree in trees)
    assert sizes[0] == 9
    assert max(sizes) == 9 * 6
    assert len(sizes) < 25  # of 540 in a serial search
    alone = [searched(game, after(game, [i]), config) for i in range(9)]
    for together, single in zip(trees, alone, strict=True):
        assert together.visits.tolist() == single.visits.tolist()


def test_a_move_keeps_its_part_of_the_tree() -> None:
    game = TicTacToe()
    tree = searched(game, game.initial())
    below, visits = tree.root.children[4], tree.visits[4]
    tree.advance(4)
    assert tree.root is below
    assert tree.visits.sum() == visits - 1  # the visit that expanded it
    search([tree], uniform, QUIET, rng())
    assert tree.visits.sum() == visits - 1 + QUIET.num_simulations
    fresh = Tree(game, game.initial())
    fresh.advance(0)  # before any search
    assert (fresh.root.state == after(game, [0])).all()


def test_noise_moves_the_root_alone_and_follows_the_seed() -> None:
    game = TicTacToe()
    config = SearchConfig(num_simulations=50, noise_fraction=0.9)

    def visits(seed: int) -> list[float]:
        tree = Tree(game, game.initial())
        search([tree], uniform, config, np.random.default_rng(seed))
        assert tree.root.prior.tolist() == pytest.approx([1 / 9] * 9)
        return list(tree.visits)

    assert visits(1) == visits(1) != visits(2)
    assert max(visits(1)) > 1.5 * max(searched(game, game.initial()).visits) / 4


def test_the_policy_sharpens_as_it_cools() -> None:
    tree = searched(TicTacToe(), after(TicTacToe(), [0, 4]))
    visits = tree.visits
    assert tree.policy(1.0) == pytest.approx(visits / visits.sum())
    assert tree.policy(0.5) == pytest.approx(visits**2 / (visits**2).sum())
    assert tree.policy(0.01).max() > 0.9
    assert tree.policy(0)[visits.argmax()] == 1
    assert not tree.policy(5.0)[[0, 4]].any()  # taken cells


def test_one_legal_action_is_taken() -> None:
    game = TicTacToe()
    state = after(game, [0, 1, 2, 4, 3, 5, 7, 6])
    assert searched(game, state, SearchConfig(num_simulations=3)).visits[8] == 3


def test_a_failed_evaluation_leaves_the_trees_as_they_were() -> None:
    game, calls = TicTacToe(), []

    def failing(observation: Any) -> tuple[Any, Any]:
        calls.append(len(observation))
        if len(calls) == 4:
            raise RuntimeError("the model went away")
        return uniform(observation)

    tree = Tree(game, game.initial())
    with pytest.raises(RuntimeError, match="went away"):
        search([tree], failing, QUIET, rng())
    total, number = backed_up(tree.root, uniform, game)
    assert (total, number) == (0, 1 + sum(calls[1:3]))
    search([tree], uniform, QUIET, rng())
    assert tree.visits.sum() == sum(calls[1:3]) + QUIET.num_simulations


@pytest.mark.parametrize(
    ("evaluate", "message"),
    [
        (
            lambda x: (np.zeros((len(x), 8)), np.zeros(len(x))),
            r"evaluate: expected logits \(1, 9\)",
        ),
        (lambda x: (np.zeros((len(x), 9)), np.zeros((len(x), 1))), r"values \(1,\), got \(1, 9\)"),
        (lambda x: (np.full((len(x), 9), np.nan), np.zeros(len(x))), "evaluate: expected finite"),
        (lambda x: (np.zeros((len(x), 9)), np.full(len(x), np.nan)), "evaluate: expected finite"),
    ],
)
def test_a_bad_function_is_refused(evaluate: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        searched(TicTacToe(), TicTacToe().initial(), evaluate=evaluate)


def test_nonsense_is_refused() -> None:
    game = TicTacToe()
    won = after(game, [0, 3, 1, 4, 2])
    with pytest.raises(ValueError, match="state: expected a game that goes on"):
        Tree(game, won)
    tree = Tree(game, after(game, [0, 3, 1, 4]))
    with pytest.raises(ValueError, match="action: expected a legal one, got 0"):
        tree.advance(0)
    with pytest.raises(ValueError, match="action: expected a legal one, got -1"):
        tree.advance(-1)
    with pytest.raises(ValueError, match="visits: expected a tree that was searched"):
        tree.policy()
    with pytest.raises(ValueError, match="temperature: expected 0 or more, got -1"):
        searched(game, game.initial()).policy(-1)
    with pytest.raises(ValueError, match="state: expected a game that goes on"):
        tree.advance(2)
    for field, value in [
        ("num_simulations", 0),
        ("leaves", 0),
        ("virtual_loss", -1),
        ("c_init", math.inf),
        ("c_base", 0),
        ("noise_alpha", 0),
        ("noise_fraction", 2),
    ]:
        with pytest.raises(ValueError, match=f"{field}: expected"):
            SearchConfig(**{field: value})
