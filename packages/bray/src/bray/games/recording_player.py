"""The learning side of a self-play game: a policy player that records its moves for training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bray.games.match import Floats, Ints, PolicyPlayer
from bray_algo import PolicyValueMLP, gae
from bray_algo.games import Boards
from bray_algo.games.boards import States
from bray_core import nested
from bray_core.layout import Layout, Packed

MOVE = ("observation", "legal", "action", "log_prob", "value")
"""Leaves of a segment with a time dimension, in the order of `match.MoveDecision`."""


def layout(game: Boards) -> Layout:
    """Return the layout of one game of the learner: T moves and how it ended."""
    moves, size, actions = (game.max_moves + 1) // 2, game.observation_size, game.num_actions
    return Layout(nested.spec({
        "observation": np.zeros((moves, size), np.float32),
        "legal": np.zeros((moves, actions), np.bool_),
        "action": np.zeros(moves, np.int64),
        "log_prob": np.zeros(moves, np.float32),
        "value": np.zeros(moves, np.float32),
        "length": np.int64(0),
        "result": np.float32(0),
    }))  # fmt: skip


def network(game: Boards, hidden: Sequence[int], seed: int) -> PolicyValueMLP:
    """Make a policy and value network for a game, the same for the same seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return PolicyValueMLP(game.observation_size, game.num_actions, hidden=hidden)


class RecordingPlayer(PolicyPlayer):
    """The current policy, which records its moves: one segment a game.

    Args:
        game: Rules of the game.
        model: Model of the current policy.
        generator: Source of its actions.
        number: Number of games side by side.
    """

    def __init__(self, game: Boards, model: Any, generator: torch.Generator, number: int) -> None:
        super().__init__(game, model, generator)
        self.block = layout(game).empty(number)
        self._columns: Any = layout(game).views(self.block)
        self._columns["length"][:] = 0

    async def act(self, games: Ints, states: States) -> Ints:
        """Return the actions, and record what they were decided from."""
        decision = await self.decide(states)
        for name, column in zip(MOVE, decision, strict=True):
            self._columns[name][games, self._columns["length"][games]] = column
        self._columns["length"][games] += 1
        return decision.action.numpy()

    @property
    def moves(self) -> Ints:
        """Number of moves that it has made in each game, `[N]`."""
        moves: Ints = self._columns["length"]
        return moves

    def end(self, score: Floats) -> Packed:
        """Return the games as segments; `score [N]` is 1 for one that was won."""
        self._columns["result"][:] = 2 * score - 1
        return Packed(layout(self._game), self.block)


def moves_of(games: Mapping[str, Tensor], gae_lambda: float) -> dict[str, Tensor]:
    """Return the moves of N games, one below the other, with their advantages.

    Only the end of a game is rewarded, by its result, and nothing is discounted.

    Args:
        games: Leaves of `layout`, `[N, T, …]`.
        gae_lambda: λ of GAE, 0 to 1; see `bray_algo.gae`.

    Returns:
        The leaves of `MOVE` and `advantage`, `[moves, …]`.
    """
    value, length = games["value"].T, games["length"]  # [N, T] -> [T, N]
    step = torch.arange(len(value))[:, None]
    last = step == length - 1
    reward, nothing = torch.where(last, games["result"], 0.0), torch.zeros(len(length))
    advantage = gae(reward, value, nothing, last, length, gamma=1.0, lambda_=gae_lambda)
    valid = (step < length).T  # [T, N] -> [N, T]
    return {name: games[name][valid] for name in MOVE} | {"advantage": advantage.T[valid]}
