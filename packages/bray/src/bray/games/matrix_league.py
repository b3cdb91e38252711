"""Leagues of mixtures over the actions of a matrix game: each player is a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bray.games.matrix_game import play, scores
from bray.games.version_pool import freeze_version, frozen_version
from bray_algo.distributions import categorical
from bray_algo.league.alphastar import League, Role
from bray_algo.league.equilibrium import nash
from bray_algo.league.intervals import Floats
from bray_algo.league.league_rules import LeagueRules
from bray_algo.league.payoff import PayoffTable
from bray_core.files.saved_file import check_format, write_atomic

_FORMAT = 1
"""Format number of the league's file; format 0 is the same without the number."""


class MixturePolicy(nn.Module):
    """A policy without an observation: `logits [A]` for every row `[B, 1]`."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits.clone())

    def forward(self, observation: Tensor) -> Tensor:
        """Return the logits `[B, A]`."""
        return self.logits + 0 * observation


class MatrixLeague:
    """A league whose learners are models, and whose frozen players are clones of them.

    Args:
        roles: Roles of the learners, by name.
        models: Models of the learners, and of others that are not in the league, by name: `[B, 1]`
            → `[B, A]`.
        path: Path of the league's state; a file that exists is taken up. `bray view` shows it.
        rules: Numbers of the league's rules.
        seed: Seed of the league's draws.

    Raises:
        FormatError: a newer version of bray wrote the file.
    """

    def __init__(
        self,
        roles: Mapping[str, Role],
        models: Mapping[str, Any],
        path: Path,
        rules: LeagueRules,
        seed: int,
    ) -> None:
        self.models = models
        self.path = path
        self.league = League(roles, rules=rules, seed=seed)
        self.ratings = PayoffTable()
        """Results of the frozen players among themselves."""
        self.versions: dict[str, int] = {}
        """Version of its learner's model, by frozen player."""
        self._frozen: dict[str, Any] = {}
        self.rounds = 0
        if path.exists():
            state = json.loads(path.read_bytes())
            check_format(path, state, _FORMAT)
            self.league = League.from_state(state["league"], rules=rules)
            self.ratings = PayoffTable.from_state(state["ratings"])
            self.versions, self.rounds = state["versions"], state["rounds"]

    def advance(self, learner: str) -> bool:
        """Count a step of a learner, freeze it when it is time; return whether it begins anew.

        The first step freezes every learner, so that there is someone to play.
        """
        is_new = learner not in self.league.frozen.values()
        due = self.league.freeze(learner) if is_new else self.league.advance(learner, 1)
        if due is None:
            return False
        self.versions[due.name] = freeze_version(self.models[learner], due.name)
        self.save()
        return due.reset

    async def policy(self, player: str) -> Floats:
        """Return the probabilities `[A]` of a learner as it is now, or of a frozen player."""
        model = self.models.get(player) or self._frozen.get(player)
        if model is None:
            parent = self.models[self.league.frozen[player]]
            model = self._frozen[player] = frozen_version(parent, player, self.versions[player])
        logits = torch.tensor(await model.forward(np.zeros(1, np.float32)), dtype=torch.float64)
        probabilities: Floats = categorical.log_probs(logits).exp().numpy()
        return probabilities

    def record(self, player: str, opponent: str, won: Floats, rng: np.random.Generator) -> None:
        """Count a learner's games by their payoffs: see `scores`."""
        for score in scores(won, rng):
            self.league.record(player, opponent, score)

    async def nash_mixture(
        self, game: Floats, games_per_pair: int, rng: np.random.Generator
    ) -> Floats:
        """Play every two frozen players, and mix them by the equilibrium of their payoff table.

        Their games count alike, in `ratings`: the league's own table forgets old ones.

        Returns:
            Probabilities of the game's actions, `[A]`.
        """
        copies = self.league.copies()
        policies = [await self.policy(name) for name in copies]
        for name in copies[len(self.ratings) :]:
            self.ratings.add(name)
        played = self.ratings.num_games
        for i, j in np.argwhere(np.tril(played < games_per_pair, -1)).tolist():
            missing = games_per_pair - int(played[i, j])
            _, won = play(game, policies[i], policies[j], missing, rng)
            for score in scores(won, rng):
                self.ratings.record(copies[i], copies[j], score)
        weights = nash(2 * self.ratings.matrix(prior_games=2) - 1).row
        mixture: Floats = weights @ np.array(policies)
        mixture /= mixture.sum()
        return mixture

    def save(self) -> None:
        """Write the league: the whole file or nothing."""
        state = {
            "format": _FORMAT,
            "league": self.league.state(),
            "ratings": self.ratings.state(),
            "versions": self.versions,
            "rounds": self.rounds,
        }
        write_atomic(self.path, json.dumps(state).encode())
