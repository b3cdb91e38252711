"""AlphaZero's self-play: games of a search against itself.

Silver et al. 2018, "A general reinforcement learning algorithm that masters chess, shogi, and Go
through self-play". `losses.alphazero` learns from them. Shapes: N games, T moves of a game, K
positions, A actions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from bray_algo.games.rules import BatchGame
from bray_algo.search.mcts import Evaluate, Floats, Ints, SearchConfig, search
from bray_algo.validation.scalars import check_count, check_not_negative


class SearchEpisode(NamedTuple):
    """Positions of games that ended, game by game, each told by the player to move."""

    observation: npt.NDArray[Any]
    """What the player to move saw, `[K, …]`."""
    policy: npt.NDArray[np.float32]
    """Visits π of the search as probabilities, `[K, A]`."""
    outcome: npt.NDArray[np.float32]
    """How the game ended for the player who moved, z, −1 to 1, `[K]`."""


class SelfPlay:
    """N games of a search against itself, whose positions are searched in one batch.

    They never end all at once: a finished game makes room for a new one.

    Args:
        game: Rules of the game.
        num_games: Number N of games side by side, 1 or more; each forward has so many rows.
        config: Numbers of the search, with noise.
        rng: Source of noise and moves.
        num_random_moves: Number of first moves of a game that are drawn from π; later ones are its
            mode. Too few, and all games are alike; too many, and outcomes say little.

    Raises:
        ValueError: no game.
    """

    def __init__(
        self,
        game: BatchGame,
        num_games: int,
        *,
        config: SearchConfig,
        rng: np.random.Generator,
        num_random_moves: int = 30,
    ) -> None:
        check_count("num_games", num_games)
        check_not_negative("num_random_moves", num_random_moves)
        self.game = game
        self.games_ended = 0
        self._config = config
        self._rng = rng
        self._num_random_moves = num_random_moves
        self._states = game.initial(num_games)
        self._moves = np.zeros(num_games, np.int64)
        # States and policies of each game so far: most games end long before they must.
        self._played: list[list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]]] = [
            [] for _ in range(num_games)
        ]

    def play(self, evaluate: Evaluate) -> SearchEpisode:
        """Play a move in every game; return the positions `[K, …]` of those that ended by it.

        Raises:
            ValueError: `search` refuses what the game or `evaluate` returned.
        """
        visits = search(self.game, self._states, evaluate, self._config, self._rng)
        policy = visits / visits.sum(1, keepdims=True)
        kept = policy.astype(np.float32)
        for played, state, share in zip(self._played, self._states, kept, strict=True):
            played.append((state, share))
        self._states = self.game.step(self._states, self._drawn(policy))
        self._moves += 1
        outcome = self.game.outcome(self._states)
        ended = np.flatnonzero(~np.isnan(outcome))
        episode = self._episode(ended, outcome[ended])
        self._states[ended] = self.game.initial(len(ended))
        for game in ended.tolist():
            self._played[game] = []
        self._moves[ended] = 0
        self.games_ended += len(ended)
        return episode

    def _drawn(self, policy: Floats) -> Ints:
        """Return an action of each game, `[N]`."""
        # Inverse of the cumulative distribution; float32 probabilities do not add up to 1 exactly.
        points = self._rng.random((len(policy), 1)) * policy.sum(1, keepdims=True)
        drawn = (policy.cumsum(1) > points).argmax(1)
        is_random = self._moves < self._num_random_moves
        actions: Ints = np.where(is_random, drawn, policy.argmax(1))
        return actions

    def _episode(self, ended: Ints, outcome: Floats) -> SearchEpisode:
        """Give each mover the end's value, which is told for the one to move after the last."""
        played = [pair for game in ended.tolist() for pair in self._played[game]]
        states = np.array([state for state, _ in played], np.int64)
        policies = np.array([policy for _, policy in played], np.float32)
        lengths = self._moves[ended]
        # The players take turns, so the end's value changes its sign with each move back.
        back = [moves for length in lengths.tolist() for moves in range(length, 0, -1)]
        worth = (-1.0) ** np.array(back, np.int64) * np.repeat(outcome, lengths)
        return SearchEpisode(
            self.game.observation(states.reshape(-1, self._states.shape[1])),
            policies.reshape(-1, self.game.num_actions),
            worth.astype(np.float32),
        )


def evaluator(network: nn.Module | Callable[[Tensor], dict[str, Tensor]]) -> Evaluate:
    """Return the policy-value function of a network that gives `logits [N, A]` and `value [N]`.

    Observations are moved to where the module's parameters are; values are clipped to −1 to 1.
    """

    @torch.no_grad()
    def evaluate(observation: npt.NDArray[Any]) -> tuple[npt.ArrayLike, npt.ArrayLike]:
        parameter = next(network.parameters(), None) if isinstance(network, nn.Module) else None
        device = None if parameter is None else parameter.device
        output = network(torch.from_numpy(observation).to(device))
        value = output["value"].clamp(-1, 1)
        return output["logits"].float().cpu().numpy(), value.float().cpu().numpy()

    return evaluate
