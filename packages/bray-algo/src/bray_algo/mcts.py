"""Monte-Carlo tree search with a policy-value function, for board games.

Silver et al. 2018, "A general reinforcement learning algorithm that masters chess, shogi, and Go
through self-play", with the search of Silver et al. 2017, "Mastering the game of Go without human
knowledge", Methods, "Search algorithm". Shapes: N observations, A actions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from bray_algo.games.game import Game
from bray_algo.intervals import Floats

State = TypeVar("State")

Evaluate: TypeAlias = Callable[[npt.NDArray[Any]], tuple[npt.ArrayLike, npt.ArrayLike]]
"""Observations `[N, …]` → logits `[N, A]`, of illegal actions any, and values `[N]`, −1 to 1, for
the player to move."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchConfig:
    """How to search; AlphaZero's numbers, but for fewer simulations."""

    num_simulations: int = 100
    """Of each tree in each search; AlphaZero: 800."""
    leaves: int = 8
    """Leaves of one tree that are evaluated in one batch, 1 or more; 1 is the serial search."""
    virtual_loss: float = 1.0
    """What a simulation that awaits its leaf counts as having lost, so that others go elsewhere."""
    c_init: float = 1.25
    """Exploration, c(s) = log((1 + N(s) + c_base) / c_base) + c_init."""
    c_base: float = 19652.0
    """Visits after which exploration grows."""
    noise_fraction: float = 0.25
    """ε of Dirichlet noise in the root's prior, 0 to 1; 0 for play that is not training."""
    noise_alpha: float = 0.3
    """Concentration of the noise, about 10 / (legal moves): chess 0.3, Go 0.03."""

    def __post_init__(self) -> None:
        for name in ("num_simulations", "leaves"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected 1 or more, got {getattr(self, name)}")
        for name in ("virtual_loss", "c_init"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: expected 0 or more, got {getattr(self, name)}")
        for name in ("c_base", "noise_alpha"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}: expected a positive number, got {getattr(self, name)}")
        if not 0 <= self.noise_fraction <= 1:
            raise ValueError(f"noise_fraction: expected 0 to 1, got {self.noise_fraction}")


class Node(Generic[State]):
    """A state, and of each of its K legal actions what the search knows."""

    __slots__ = (
        "actions",
        "awaited",
        "children",
        "outcome",
        "prior",
        "state",
        "total",
        "value_sum",
        "visits",
    )

    def __init__(self, state: State, outcome: float | None) -> None:
        self.state = state
        self.outcome = outcome
        self.awaited = False
        """Whether it is in the batch that is being evaluated."""
        self.actions: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        """`[K]`; empty until the node is expanded."""
        self.prior: Floats = np.zeros(0)
        self.visits: Floats = np.zeros(0)
        self.total = 0
        """Sum of the visits."""
        self.value_sum: Floats = np.zeros(0)
        """Of the values backed up, for the player to move in this node."""
        self.children: list[Node[State] | None] = []

    def expand(self, actions: npt.NDArray[np.int64], logits: Floats) -> None:
        """Give it actions, with the softmax of their logits for a prior."""
        weights = np.exp(logits - logits.max())
        self.actions, self.prior = actions, weights / weights.sum()
        self.visits, self.value_sum = np.zeros(len(actions)), np.zeros(len(actions))
        self.children = [None] * len(actions)


class Tree(Generic[State]):
    """The search of one game, from the state to move in.

    Raises:
        ValueError: the game has ended.
    """

    def __init__(self, game: Game[State], state: State) -> None:
        self.game = game
        self.root: Node[State] = Node(state, game.outcome(state))
        self._check_root()

    @property
    def visits(self) -> Floats:
        """How often the search took each action, `[A]`."""
        return self._spread(self.root.visits)

    @property
    def values(self) -> Floats:
        """The mean value of each action for the player to move, `[A]`; 0 where it took none."""
        return self._spread(self.root.value_sum / np.maximum(self.root.visits, 1))

    def policy(self, temperature: float = 1.0) -> Floats:
        """Return π(a) ∝ N(a)^(1 / temperature), `[A]`; 0: the most visited action alone.

        Raises:
            ValueError: the tree was not searched, or the temperature is negative.
        """
        visits = self.visits
        if not visits.any():
            raise ValueError("visits: expected a tree that was searched, got none: call search")
        if not temperature >= 0:
            raise ValueError(f"temperature: expected 0 or more, got {temperature}")
        weights: Floats = np.zeros(len(visits))
        if temperature == 0:
            weights[visits.argmax()] = 1
            return weights
        np.power(visits / visits.max(), 1 / temperature, out=weights)
        weights /= weights.sum()
        return weights

    def advance(self, action: int) -> None:
        """Play an action: its part of the tree is kept, the rest is dropped.

        Raises:
            ValueError: the action is illegal, or ended the game.
        """
        if not (0 <= action < self.game.num_actions and self.game.legal(self.root.state)[action]):
            raise ValueError(f"action: expected a legal one, got {action}")
        at = np.flatnonzero(self.root.actions == action)
        child = self.root.children[at[0]] if len(at) else None
        self.root = child or self._child(self.root, action)
        self._check_root()

    def _child(self, node: Node[State], action: int) -> Node[State]:
        state = self.game.step(node.state, action)
        return Node(state, self.game.outcome(state))

    def _spread(self, numbers: Floats) -> Floats:
        full = np.zeros(self.game.num_actions)
        full[self.root.actions] = numbers
        return full

    def _check_root(self) -> None:
        if self.root.outcome is not None:
            raise ValueError("state: expected a game that goes on, got an ended one")


Path: TypeAlias = list[tuple[Node[State], int]]


def search(
    trees: Sequence[Tree[State]],
    evaluate: Evaluate,
    config: SearchConfig,
    rng: np.random.Generator,
) -> None:
    """Add `num_simulations` to each tree; the leaves of all trees are evaluated in one batch.

    A simulation takes argmax Q(s,a) + c(s) P(s,a) √N(s) / (1 + N(s,a)) to a leaf, N(s) the visits
    of s and its expansion, Q = 0 where there was none; the leaf's value, or the outcome of an ended
    game, goes back along the path with alternating sign.

    Raises:
        ValueError: what `evaluate` returned has other shapes or is not finite, or a state that goes
            on has no legal action.
    """
    expand([tree.root for tree in trees if not len(tree.root.actions)], trees, evaluate)
    priors = [_noisy(tree.root.prior, config, rng) for tree in trees]
    done = [0] * len(trees)
    while min(done, default=config.num_simulations) < config.num_simulations:
        leaves: list[tuple[Path[State], Node[State]]] = []
        for i, (tree, prior) in enumerate(zip(trees, priors, strict=True)):
            for _ in range(min(config.leaves, config.num_simulations - done[i])):
                path, leaf = _descend(tree, prior, config)
                if leaf.awaited:  # evaluated once: the tree has no other leaf as good, so go on
                    _retract(path, config)
                    break
                done[i] += 1
                if leaf.outcome is None:
                    leaf.awaited = True
                    leaves.append((path, leaf))
                else:
                    _back_up(path, leaf.outcome, config)
        _evaluate_and_back_up(leaves, trees, evaluate, config)


def _evaluate_and_back_up(
    leaves: Sequence[tuple[Path[State], Node[State]]],
    trees: Sequence[Tree[State]],
    evaluate: Evaluate,
    config: SearchConfig,
) -> None:
    for _, leaf in leaves:
        leaf.awaited = False
    try:
        values = expand([leaf for _, leaf in leaves], trees, evaluate)
    except BaseException:  # the trees stay as they were before the batch
        for path, _ in leaves:
            _retract(path, config)
        raise
    for (path, _), value in zip(leaves, values.tolist(), strict=True):
        _back_up(path, value, config)


def expand(
    nodes: Sequence[Node[State]], trees: Sequence[Tree[State]], evaluate: Evaluate
) -> Floats:
    """Evaluate nodes in one batch, expand them, and return their values, `[N]`."""
    if not nodes:
        return np.zeros(0)
    game = trees[0].game
    logits, values = evaluate(np.stack([game.observation(node.state) for node in nodes]))
    logits, values = np.asarray(logits, np.float64), np.asarray(values, np.float64)
    if logits.shape != (len(nodes), game.num_actions) or values.shape != (len(nodes),):
        raise ValueError(
            f"evaluate: expected logits {(len(nodes), game.num_actions)} and values "
            f"{(len(nodes),)}, got {logits.shape} and {values.shape}"
        )
    legal = [np.flatnonzero(game.legal(node.state)) for node in nodes]
    rows = [row[actions] for row, actions in zip(logits, legal, strict=True)]
    if not all(map(len, legal)):
        raise ValueError("legal: expected a legal action in a state that goes on, got none")
    if not (np.isfinite(values).all() and all(np.isfinite(row).all() for row in rows)):
        raise ValueError("evaluate: expected finite values and logits of legal actions, got others")
    for node, actions, row in zip(nodes, legal, rows, strict=True):
        node.expand(actions, row)
    return values


def _descend(
    tree: Tree[State], root_prior: Floats, config: SearchConfig
) -> tuple[Path[State], Node[State]]:
    """Go to a leaf, leaving a virtual loss on each action taken."""
    path: Path[State] = []
    node, prior = tree.root, root_prior
    while len(node.actions):
        at = _choose(node, prior, config)
        node.visits[at] += 1
        node.total += 1
        node.value_sum[at] -= config.virtual_loss
        path.append((node, at))
        child = node.children[at]
        if child is None:
            child = node.children[at] = tree._child(node, int(node.actions[at]))
        node, prior = child, child.prior
    return path, node


def _choose(node: Node[State], prior: Floats, config: SearchConfig) -> int:
    total = 1 + node.total
    c = math.log((total + 1 + config.c_base) / config.c_base) + config.c_init
    value = node.value_sum / np.maximum(node.visits, 1)
    return int((value + c * math.sqrt(total) * prior / (1 + node.visits)).argmax())


def _back_up(path: Path[State], value: float, config: SearchConfig) -> None:
    """Replace the virtual losses by the value, told for the player to move at the leaf."""
    for node, at in reversed(path):
        value = -value
        node.value_sum[at] += config.virtual_loss + value


def _retract(path: Path[State], config: SearchConfig) -> None:
    for node, at in path:
        node.visits[at] -= 1
        node.total -= 1
        node.value_sum[at] += config.virtual_loss


def _noisy(prior: Floats, config: SearchConfig, rng: np.random.Generator) -> Floats:
    """Return (1 − ε) p + ε η, η ~ Dirichlet(α)."""
    if not config.noise_fraction:
        return prior
    noise = rng.dirichlet(np.full(len(prior), config.noise_alpha))
    return (1 - config.noise_fraction) * prior + config.noise_fraction * noise
