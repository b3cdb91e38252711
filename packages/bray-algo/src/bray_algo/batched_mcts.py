"""The search of `bray_algo.mcts` in many games in lock-step, its trees in arrays.

Silver et al. 2018, "A general reinforcement learning algorithm that masters chess, shogi, and Go
through self-play". Of every game each simulation evaluates one leaf, so no virtual loss is needed,
and a game's result is that of the serial search. The cost of Python is shared by all games.
Shapes: N games, A actions, M nodes of a tree, S numbers of a state.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bray_algo.games.batch_game import BatchGame, States
from bray_algo.intervals import Floats
from bray_algo.mcts import Evaluate, SearchConfig

Ints = npt.NDArray[np.int64]


class Trees:
    """N trees, node 0 the root of each, a node for each simulation."""

    def __init__(self, game: BatchGame, states: States, num_nodes: int) -> None:
        shape = len(states), num_nodes
        self.game = game
        self.num_nodes = num_nodes
        self.num = np.ones(len(states), np.int64)
        """Nodes in use, `[N]`."""
        # Flat, [N · M, …]: one index is quicker than two.
        self.states: States = np.zeros((shape[0] * shape[1], states.shape[1]), np.int64)
        self.outcome: Floats = np.full(shape[0] * shape[1], np.nan)
        edges = shape[0] * shape[1], game.num_actions
        self.prior: Floats = np.zeros(edges)
        self.visits: Floats = np.zeros(edges)
        self.value_sum: Floats = np.zeros(edges)
        """−inf of illegal actions, so that none is ever the best."""
        self.children: Ints = np.full(edges, -1, np.int64)
        self.roots: Ints = np.arange(shape[0]) * num_nodes
        self.states[self.roots] = states

    def expand(self, nodes: Ints, evaluate: Evaluate) -> Floats:
        """Evaluate flat nodes `[K]`, give them priors, and return their values `[K]`."""
        states = self.states[nodes]
        logits, values = _evaluated(evaluate, self.game, states)
        legal = self.game.legal(states)
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

    As `bray_algo.mcts.search` with `leaves=1`; the config's `leaves` and `virtual_loss` say nothing
    here.

    Args:
        game: the rules.
        states: not ended ones, `[N, S]`.
        evaluate: the policy-value function.
        config: of the search.
        rng: of the noise.

    Raises:
        ValueError: a game has ended, or what `evaluate` returned has other shapes or is not finite.
    """
    if not np.isnan(game.outcome(states)).all():
        raise ValueError("states: expected games that go on, got an ended one")
    trees = Trees(game, states, config.num_simulations + 1)
    trees.expand(trees.roots, evaluate)
    if config.noise_fraction:
        trees.prior[trees.roots] = _noisy(trees.prior[trees.roots], game.legal(states), config, rng)
    for simulation in range(config.num_simulations):
        _simulate(trees, evaluate, config, simulation)
    return trees.visits[trees.roots]


def _simulate(trees: Trees, evaluate: Evaluate, config: SearchConfig, simulation: int) -> None:
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


def _choose(trees: Trees, nodes: Ints, config: SearchConfig) -> Ints:
    """Return argmax Q(s,a) + c(s) P(s,a) √N(s) / (1 + N(s,a)) of each node, `[K]`."""
    visits = trees.visits[nodes]
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
    gamma = np.maximum(rng.standard_gamma(config.noise_alpha, prior.shape), 1e-30) * legal
    noise = gamma / gamma.sum(1, keepdims=True)
    return np.asarray((1 - config.noise_fraction) * prior + config.noise_fraction * noise)


def _evaluated(evaluate: Evaluate, game: BatchGame, states: States) -> tuple[Floats, Floats]:
    given: tuple[Any, Any] = evaluate(game.observation(states))
    logits, values = (np.asarray(part, np.float64) for part in given)
    if logits.shape != (len(states), game.num_actions) or values.shape != (len(states),):
        raise ValueError(
            f"evaluate: expected logits {(len(states), game.num_actions)} and values "
            f"{(len(states),)}, got {logits.shape} and {values.shape}"
        )
    if not (np.isfinite(values).all() and np.isfinite(logits).all()):
        raise ValueError("evaluate: expected finite values and logits, got others")
    return logits, values
