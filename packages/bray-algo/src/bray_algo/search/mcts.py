"""Monte-Carlo tree search with a policy-value function, in many games in lock-step.

Silver et al. 2018, "A general reinforcement learning algorithm that masters chess, shogi, and Go
through self-play", with the search of Silver et al. 2017, "Mastering the game of Go without human
knowledge", Methods, "Search algorithm". Each simulation evaluates one leaf of every game, so no
virtual loss is needed, and a game's result is that of the paper's serial search. The trees are
arrays: the cost of Python is shared by all games. Shapes: N games, A actions, M nodes of a tree,
S numbers of a state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bray_algo.games.rules import BatchGame, States
from bray_algo.validation.scalars import (
    check_count,
    check_fraction,
    check_not_negative,
    check_positive,
)

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

Evaluate: TypeAlias = Callable[[npt.NDArray[Any]], tuple[npt.ArrayLike, npt.ArrayLike]]
"""Policy-value function: observations `[N, …]` → logits `[N, A]`, any number for illegal actions,
and values `[N]`, −1 to 1, for the player to move."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchConfig:
    """Numbers of a search; AlphaZero's, but for fewer simulations."""

    num_simulations: int = 100
    """Simulations of each search; 50 to 800 (AlphaZero). More play better and take as much longer;
    with too few, visits are little more than the network's own policy, and nothing is learned."""
    c_init: float = 1.25
    """Exploration, in c(s) = log((1 + N(s) + c_base) / c_base) + c_init; 1 to 4. Too large spreads
    the visits over bad moves; too small never looks past the network's first idea."""
    c_base: float = 19652.0
    """Number of visits of a node after which exploration grows."""
    noise_fraction: float = 0.25
    """Share ε of Dirichlet noise in the root's prior, 0 to 1; 0.25 in training, where it lets
    self-play find moves that the network thinks little of, and 0 in other play."""
    noise_alpha: float = 0.3
    """Concentration of the noise, about 10 / (legal moves): chess 0.3, Go 0.03. Small ones push a
    few moves much, large ones all moves a little."""

    def __post_init__(self) -> None:
        check_count("num_simulations", self.num_simulations)
        check_not_negative("c_init", self.c_init)
        check_positive("c_base", self.c_base)
        check_positive("noise_alpha", self.noise_alpha)
        check_fraction("noise_fraction", self.noise_fraction)


class SearchTrees:
    """N trees, node 0 the root of each, a node for each simulation."""

    def __init__(self, game: BatchGame, states: States, num_nodes: int) -> None:
        shape = len(states), num_nodes
        self.game = game
        self.num_nodes = num_nodes
        self.num = np.ones(len(states), np.int64)
        """Number of nodes in use, `[N]`."""
        # Flat, [N · M, …]: one index is quicker than two.
        self.states: States = np.zeros((shape[0] * shape[1], states.shape[1]), np.int64)
        self.outcome: Floats = np.full(shape[0] * shape[1], np.nan)
        edges = shape[0] * shape[1], game.num_actions
        self.prior: Floats = np.zeros(edges)
        self.visits: Floats = np.zeros(edges)
        self.value_sum: Floats = np.zeros(edges)
        """Sum of the values of each action; −inf for illegal ones, so that none is ever the
        best."""
        self.children: Ints = np.full(edges, -1, np.int64)
        self.roots: Ints = np.arange(shape[0]) * num_nodes
        self.states[self.roots] = states

    def expand(self, nodes: Ints, evaluate: Evaluate) -> Floats:
        """Evaluate flat nodes `[K]`, give them priors, and return their values `[K]`."""
        states = self.states[nodes]
        legal = self.game.legal(states)
        logits, values = _evaluated(evaluate, self.game.observation(states), legal)
        logits = np.where(legal, logits, -np.inf)
        weights = np.exp(logits - logits.max(1, keepdims=True))
        self.prior[nodes] = weights / weights.sum(1, keepdims=True)
        self.value_sum[nodes] = np.where(legal, 0.0, -np.inf)
        return values

    def add(self, parents: Ints, actions: Ints, games: Ints) -> Ints:
        """Make the children `[K]` of actions of flat nodes, and return them."""
        children = self.roots[games] + self.num[games]
        self.num[games] += 1
        states = self.game.step(self.states[parents], actions)
        self.states[children] = states
        self.outcome[children] = self.game.outcome(states)
        self.children[parents, actions] = children
        return children


def search(
    game: BatchGame,
    states: States,
    evaluate: Evaluate,
    config: SearchConfig,
    rng: np.random.Generator,
) -> Floats:
    """Search each state afresh and return how often each action was taken, `[N, A]`.

    A simulation takes argmax Q(s,a) + c(s) P(s,a) √N(s) / (1 + N(s,a)) to a leaf, N(s) the visits
    of s and its expansion, Q = 0 where there was none; the leaf's value, or the outcome of an ended
    game, goes back along the path with alternating sign.

    Args:
        game: Rules of the game.
        states: States that go on, `[N, S]`.
        evaluate: Policy-value function, asked for one batch in each simulation.
        config: Numbers of the search.
        rng: Source of the noise.

    Examples:
        A search without a network finds the move that wins:

        >>> from bray_algo.games import TIC_TAC_TOE
        >>> board = [[1, 1, 0], [-1, -1, 0], [0, 0, 0]]  # 1: of the player to move
        >>> knows_nothing = lambda x: (np.zeros((len(x), 9)), np.zeros(len(x)))
        >>> config, rng = SearchConfig(noise_fraction=0.0), np.random.default_rng(0)
        >>> visits = search(TIC_TAC_TOE, TIC_TAC_TOE.states([board]), knows_nothing, config, rng)
        >>> visits.argmax(1).tolist()
        [2]

    Raises:
        ValueError: a game has ended, a state that goes on has no legal action, or what `evaluate`
            returned has other shapes or is not finite.
    """
    if not np.isnan(game.outcome(states)).all():
        raise ValueError("states: expected games that go on, got an ended one")
    trees = SearchTrees(game, states, config.num_simulations + 1)
    trees.expand(trees.roots, evaluate)
    if config.noise_fraction:
        trees.prior[trees.roots] = _noisy(trees.prior[trees.roots], game.legal(states), config, rng)
    for simulation in range(config.num_simulations):
        _simulate(trees, evaluate, config, simulation)
    return trees.visits[trees.roots]


def _simulate(
    trees: SearchTrees, evaluate: Evaluate, config: SearchConfig, simulation: int
) -> None:
    """Descend to a leaf of each tree, evaluate them as one batch and back their values up."""
    leaves = np.empty(len(trees.roots), np.int64)
    steps: list[tuple[Ints, Ints, Ints]] = []  # games still descending, their nodes and actions
    games, nodes = np.arange(len(trees.roots)), trees.roots
    while len(games):
        actions = _choose(trees, nodes, config)
        steps.append((games, nodes, actions))
        children = trees.children[nodes, actions]
        is_new = children < 0
        if is_new.any():
            children[is_new] = trees.add(nodes[is_new], actions[is_new], games[is_new])
        leaves[games] = children
        descends = ~is_new & np.isnan(trees.outcome[children])
        games, nodes = games[descends], children[descends]
    values = trees.outcome[leaves]
    goes_on = np.isnan(values)
    if goes_on.any():
        values[goes_on] = trees.expand(leaves[goes_on], evaluate)
    for games, nodes, actions in reversed(steps):
        values[games] *= -1  # told for the player to move in these nodes
        trees.visits[nodes, actions] += 1
        trees.value_sum[nodes, actions] += values[games]


def _choose(trees: SearchTrees, nodes: Ints, config: SearchConfig) -> Ints:
    """Return argmax Q(s,a) + c(s) P(s,a) √N(s) / (1 + N(s,a)) of each node, `[K]`."""
    visits = trees.visits[nodes]
    # Plus one: its own expansion counts as a visit, and the root's first choice follows the prior.
    total = 1 + visits.sum(1, keepdims=True)
    c = np.log((total + 1 + config.c_base) / config.c_base) + config.c_init
    score = trees.value_sum[nodes] / np.maximum(visits, 1)
    score += c * np.sqrt(total) * trees.prior[nodes] / (1 + visits)
    chosen: Ints = score.argmax(1)
    return chosen


def _noisy(
    prior: Floats, legal: npt.NDArray[np.bool_], config: SearchConfig, rng: np.random.Generator
) -> Floats:
    """Return (1 − ε) p + ε η, η ~ Dirichlet(α) over the legal actions."""
    # A Dirichlet draw is gamma draws over their sum; tiny ones must not all be 0.
    gamma = np.maximum(rng.standard_gamma(config.noise_alpha, prior.shape), 1e-30) * legal
    noise = gamma / gamma.sum(1, keepdims=True)
    return np.asarray((1 - config.noise_fraction) * prior + config.noise_fraction * noise)


def _evaluated(
    evaluate: Evaluate, observation: npt.NDArray[Any], legal: npt.NDArray[np.bool_]
) -> tuple[Floats, Floats]:
    given: tuple[Any, Any] = evaluate(observation)
    logits, values = (np.asarray(part, np.float64) for part in given)
    if logits.shape != legal.shape or values.shape != legal.shape[:1]:
        raise ValueError(
            f"evaluate: expected logits {legal.shape} and values {legal.shape[:1]}, got "
            f"{logits.shape} and {values.shape}"
        )
    if not legal.any(1).all():
        raise ValueError("legal: expected a legal action in a state that goes on, got none")
    if not (np.isfinite(values).all() and np.isfinite(logits[legal]).all()):
        raise ValueError("evaluate: expected finite values and logits of legal actions, got others")
    return logits, values
