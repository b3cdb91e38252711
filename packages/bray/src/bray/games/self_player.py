"""Self-play of a board game by a model's search: its positions, the network, the player."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bray_actor.multi_agent.seat import GameResult
from bray_algo.games import PlanesGame
from bray_algo.networks.board_network import BoardNetwork
from bray_algo.search.alphazero import SelfPlay
from bray_algo.search.mcts import Evaluate, SearchConfig
from bray_core import nested
from bray_core.layout import Layout, Packed
from bray_core.protocols import BufferProtocol

_WAIT_S = 600.0
"""Seconds for which a trainer may hold the players back."""


def position_layout(game: PlanesGame) -> Layout:
    """Return the layout of a position: a row of `bray_algo.search.alphazero.SearchEpisode`."""
    position = {
        "observation": game.observation(game.initial(1))[0],
        "policy": np.zeros(game.num_actions, np.float32),
        "outcome": np.zeros((), np.float32),
    }
    return Layout(nested.spec(position))


def network(game: PlanesGame, hidden: Sequence[int], seed: int) -> BoardNetwork:
    """Make a policy and value network for a game, the same for the same seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return BoardNetwork(
            game.shape,
            game.num_actions,
            planes=game.observation(game.initial(1)).shape[1],
            window=game.window,
            hidden=hidden,
        )


def turned(positions: dict[str, Tensor], cells: Tensor, actions: Tensor) -> dict[str, Tensor]:
    """Return positions as a symmetry of the board shows them.

    Args:
        positions: Leaves of `position_layout`, `[B, …]`.
        cells: Order of the cells, one of `PlanesGame.symmetries`.
        actions: Order of the actions of the same symmetry.
    """
    planes = positions["observation"]
    return {
        "observation": planes.flatten(2)[..., cells].view_as(planes),
        "policy": positions["policy"][:, actions],
        "outcome": positions["outcome"],
    }


def evaluator(model: Any) -> Evaluate:
    """Return the policy-value function of a model, here or on Ray: its version of the moment."""

    def evaluate(observation: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        outputs = model(observation, batch=True)
        return outputs["logits"], outputs["value"]

    return evaluate


class SelfPlayer:
    """Games of a search against itself that go on from call to call, as rollouts step them.

    Args:
        game: Rules of the game.
        model: Model whose outputs are `logits [B, A]` and `value [B]`.
        buffer: Buffer of positions, in `position_layout`.
        num_games: Number of games side by side.
        search: Numbers of the search before each move.
        num_random_moves: Number of moves at the beginning of a game that are drawn in proportion to
            the visits; later ones are the most visited.
        seed: Seed of noise and moves.
    """

    def __init__(
        self,
        game: PlanesGame,
        model: Any,
        buffer: BufferProtocol,
        *,
        num_games: int,
        search: SearchConfig,
        num_random_moves: int,
        seed: int,
    ) -> None:
        self._evaluate = evaluator(model)
        self._buffer = buffer
        self._games = SelfPlay(
            game,
            num_games,
            config=search,
            rng=np.random.default_rng(seed),
            num_random_moves=num_random_moves,
        )

    async def run(self, steps: int) -> int:
        """Play so many moves in every game; return how many positions were pushed.

        Errors are those of `play`.
        """
        return self.play(steps)

    def cut(self) -> None:
        """Do nothing: a position is pushed once its game has ended, when its outcome is known."""

    async def next_version(self) -> None:
        """Do nothing: each move is searched with the newest version."""

    def take_returns(self) -> list[float]:
        """Return nothing: a game against oneself has no return."""
        return []

    def take_results(self) -> list[GameResult]:
        """Return nothing: these are no games of several policies."""
        return []

    def close(self) -> None:
        """Do nothing: the games hold no processes."""

    def play(self, num_moves: int) -> int:
        """Play so many moves in every game; return how many positions of ended ones were pushed.

        Raises:
            DeadlineError: the buffer had no room within ten minutes.
        """
        pushed = 0
        layout = self._buffer.layout
        for _ in range(num_moves):
            positions = self._games.play(self._evaluate)._asdict()
            block = layout.empty(len(positions["outcome"]))
            leaves: Any = layout.views(block)
            for name, leaf in positions.items():
                leaves[name][...] = leaf
            pushed += self._buffer.push(Packed(layout, block), wait=True, timeout_s=_WAIT_S)
        return pushed
