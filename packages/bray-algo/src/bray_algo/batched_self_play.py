"""Games of a search against itself that never end all at once: a finished one makes room for a new.

Silver et al. 2018, "A general reinforcement learning algorithm that masters chess, shogi, and Go
through self-play". Shapes: N games, T moves of a game, A actions, K positions.
"""

from __future__ import annotations

import numpy as np

from bray_algo.alphazero import Episode
from bray_algo.batched_mcts import Ints, search
from bray_algo.games.batch_game import BatchGame
from bray_algo.intervals import Floats
from bray_algo.mcts import Evaluate, SearchConfig


class SelfPlay:
    """N games side by side, whose positions are searched in one batch.

    Args:
        game: the rules.
        num_games: N, 1 or more.
        config: of the search, with noise.
        rng: of noise and moves.
        num_random_moves: the first moves of a game are drawn from π, later ones are its mode.

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
        if num_games < 1:
            raise ValueError(f"num_games: expected 1 or more, got {num_games}")
        self.game = game
        self.games_ended = 0
        self._config = config
        self._rng = rng
        self._num_random_moves = num_random_moves
        self._states = game.initial(num_games)
        self._moves = np.zeros(num_games, np.int64)
        self._seen = np.zeros((num_games, game.max_moves, self._states.shape[1]), np.int64)
        self._policies = np.zeros((num_games, game.max_moves, game.num_actions), np.float32)

    def play(self, evaluate: Evaluate) -> Episode:
        """Play a move in every game; return the positions `[K, …]` of those that ended by it.

        Raises:
            ValueError: as in `search`.
        """
        visits = search(self.game, self._states, evaluate, self._config, self._rng)
        policy = visits / visits.sum(1, keepdims=True)
        games = np.arange(len(policy))
        self._seen[games, self._moves] = self._states
        self._policies[games, self._moves] = policy
        self._states = self.game.step(self._states, self._drawn(policy))
        self._moves += 1
        outcome = self.game.outcome(self._states)
        ended = np.flatnonzero(~np.isnan(outcome))
        episode = self._episode(ended, outcome[ended])
        self._states[ended] = self.game.initial(len(ended))
        self._moves[ended] = 0
        self.games_ended += len(ended)
        return episode

    def _drawn(self, policy: Floats) -> Ints:
        """Return an action of each game, `[N]`."""
        points = self._rng.random((len(policy), 1)) * policy.sum(1, keepdims=True)
        drawn = (policy.cumsum(1) > points).argmax(1)
        is_random = self._moves < self._num_random_moves
        actions: Ints = np.where(is_random, drawn, policy.argmax(1))
        return actions

    def _episode(self, ended: Ints, outcome: Floats) -> Episode:
        """Give each mover the end's value, which is told for the one to move after the last."""
        played = np.arange(self.game.max_moves) < self._moves[ended, None]  # [K games, T]
        game, at = np.nonzero(played)
        rows = ended[game]
        sign = (-1.0) ** (self._moves[rows] - at)
        return Episode(
            self.game.observation(self._seen[rows, at]),
            self._policies[rows, at],
            (sign * outcome[game]).astype(np.float32),
        )
