"""Opponents of a learner in self-play: itself as it is now, and versions of a pool."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import torch

from bray.games.match import PolicyPlayer, play
from bray.games.version_pool import VersionPool
from bray_algo.games import Boards
from bray_algo.league.champion import Champion
from bray_algo.league.matchmaking import past_weights, pfsp_weights
from bray_algo.league.payoff import PayoffTable
from bray_core.errors import ConfigError
from bray_core.settings.choice import check_choice

OpponentChoice = Literal["past", "pfsp", "champion"]
LATEST = "latest"
_LEARNER = "learner"
_PRIOR_GAMES = 10.0


class Opponents:
    """Draws opponents, and freezes versions into the pool.

    `past` draws versions uniformly. `pfsp` prefers those that the learner does not beat (f_hard),
    by its games since the last freeze. `champion` plays the best version, which a frozen one
    replaces when it beats it with confidence.

    Args:
        kind: One of these three.
        pool: Pool of the versions; the champion is kept with it.
        latest: Share of games against the learner as it is now, 0 to 1; all while the pool is
            empty. See `bray_algo.league.matchmaking.past_weights` for too much and too little.
        rng: Source of the draws.

    Raises:
        ConfigError: an unknown kind, or a share out of range.
    """

    def __init__(
        self, kind: OpponentChoice, pool: VersionPool, *, latest: float, rng: np.random.Generator
    ) -> None:
        check_choice("opponents", kind, get_args(OpponentChoice))
        if not 0 <= latest <= 1:
            raise ConfigError(f"latest: expected 0 to 1, got {latest}")
        self.kind = kind
        self._pool = pool
        self._latest = latest
        self._rng = rng
        self._results = PayoffTable([_LEARNER, *pool.names])
        self.champion = Champion(**pool.notes["champion"]) if "champion" in pool.notes else None

    def draw(self, num_games: int, num_versions: int) -> list[str]:
        """Return an opponent for each game, `LATEST` or one of at most so many drawn versions."""
        if not len(self._pool):
            return [LATEST] * num_games
        names = self._rng.choice(self._pool.names, num_versions, p=self._weights())
        shares = np.append(np.full(num_versions, (1 - self._latest) / num_versions), self._latest)
        drawn: list[str] = self._rng.choice([*names, LATEST], num_games, p=shares).tolist()
        return drawn

    def record(self, opponent: str, score: float) -> None:
        """Count a game of the learner: 1 it won, 0.5 a draw, 0 the opponent."""
        if opponent != LATEST:
            self._results.record(_LEARNER, opponent, score)

    async def freeze(self, game: Boards, generator: torch.Generator) -> str:
        """Freeze the learner into the pool, and let it challenge the champion if there is one.

        Returns:
            The version's name.
        """
        name = self._pool.freeze()
        self._results.add(name)
        self._results.forget(_LEARNER)
        if self.kind == "champion":
            await self._challenge(name, game, generator)
        return name

    def _weights(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        names = self._pool.names
        if self.kind == "champion" and self.champion is not None:
            return np.array([float(name == self.champion.best) for name in names])
        if self.kind == "pfsp":
            rates = self._results.win_rates(_LEARNER, names, prior_games=_PRIOR_GAMES)
            return pfsp_weights(rates, "hard")
        return past_weights(len(names) + 1)[:-1]  # the latest has its share apart

    async def _challenge(self, name: str, game: Boards, generator: torch.Generator) -> None:
        if self.champion is None:
            self.champion = Champion(best=name)
        else:
            await self._play_challenge(self.champion, name, game, generator)
        self._pool.notes["champion"] = self.champion.state()
        self._pool.save()

    async def _play_challenge(
        self, champion: Champion, name: str, game: Boards, generator: torch.Generator
    ) -> None:
        best = champion.best
        players = {n: PolicyPlayer(game, self._pool[n], generator) for n in (name, best)}
        champion.challenge(name)
        verdict = "play"
        while verdict == "play":
            half = champion.look_every // 2
            first = await play(game, players, [(name, best)] * half)
            second = 1 - await play(game, players, [(best, name)] * half)
            for score in np.stack([first, second], 1).ravel():  # the sides by turns
                if verdict == "play":
                    self._pool.payoff.record(name, best, float(score))
                    verdict = champion.record(float(score))
