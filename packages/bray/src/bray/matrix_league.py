"""Leagues of mixtures over the actions of a matrix game: players as models, games as numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from bray import league_pictures
from bray.frozen import freeze, frozen
from bray_algo import categorical
from bray_algo.equilibrium import exploitability, nash, symmetrised
from bray_algo.intervals import Floats
from bray_algo.league import League
from bray_algo.league_rules import LeagueRules, Role
from bray_algo.payoff import PayoffTable
from bray_core import nested
from bray_core.config import closest
from bray_core.errors import ConfigError
from bray_core.experiment import write_atomic
from bray_core.layout import Layout

GAMES: dict[str, list[list[float]]] = {
    "rock-paper-scissors": [[0, -1, 1], [1, 0, -1], [-1, 1, 0]],
    "rock-paper-scissors-well": [[0, -1, 1, -1], [1, 0, -1, 1], [-1, 1, 0, -1], [1, -1, 1, 0]],
    "matching-pennies": [[1, -1], [-1, 1]],
}
"""What the row's player wins, by name."""
LAYOUT = Layout(
    nested.spec({"action": np.int64(0), "reward": np.float32(0), "restart": np.bool_(False)})
)
"""Of one game of a learner, and whether that one begins anew instead."""


def named_game(text: str) -> list[list[float]]:
    """Return the payoffs of a game by its name, or of a matrix as JSON.

    Raises:
        ConfigError: it is neither; names the closest game.
    """
    try:
        payoff: list[list[float]] = GAMES.get(text) or json.loads(text)
    except ValueError:
        raise ConfigError(
            f"task: expected one of {', '.join(GAMES)}, or a matrix as JSON, got {text!r}"
            f"{closest(text, GAMES)}"
        ) from None
    return payoff


def antisymmetric(payoff: npt.ArrayLike) -> Floats:
    """Return the game that is played: antisymmetric, its largest payoff 1.

    Args:
        payoff: of a zero-sum game, `[N, N]` antisymmetric (both players choose among the same
            actions), or any `[M, N]`, of which `symmetrised` is played.

    Raises:
        ConfigError: not a finite matrix, or all zeros.
    """
    try:
        game = np.asarray(payoff, np.float64)
    except (ValueError, TypeError):  # rows of several lengths, or no numbers
        game = np.zeros(0)
    if game.ndim != 2 or not np.isfinite(game).all() or not game.any():
        raise ConfigError(f"payoff: expected finite [M, N], not all zeros, got {payoff!r}")
    if game.shape[0] != game.shape[1] or not np.allclose(game, -game.T):
        game = symmetrised(game)
    return game / max(float(np.abs(game).max()), 1e-12)


class Mixture(nn.Module):
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
        roles: of the learners, by name.
        models: of the learners, and of others that are not in the league: `[B, 1]` → `[B, A]`.
        path: the file of the league's state; one that exists is taken up.
        rules: the numbers.
        seed: of the league's draws.
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
        """Games of the frozen players among themselves."""
        self.versions: dict[str, int] = {}
        """Frozen player → version of its learner's model."""
        self._frozen: dict[str, Any] = {}
        self.rounds = 0
        if path.exists():
            state = json.loads(path.read_bytes())
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
        self.versions[due.name] = freeze(self.models[learner], due.name)
        self.save()
        return due.reset

    async def policy(self, player: str) -> Floats:
        """Return the probabilities `[A]` of a learner as it is now, or of a frozen player."""
        model = self.models.get(player) or self._frozen.get(player)
        if model is None:
            parent = self.models[self.league.frozen[player]]
            model = self._frozen[player] = frozen(parent, player, self.versions[player])
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
            "league": self.league.state(),
            "ratings": self.ratings.state(),
            "versions": self.versions,
            "rounds": self.rounds,
        }
        write_atomic(self.path, json.dumps(state).encode())

    def draw(self, path: Path) -> None:
        """Draw the win rates of the frozen players, oldest first, as a PNG file."""
        picture = league_pictures.heat_map(self.ratings.matrix())
        write_atomic(path, league_pictures.png(picture))


@dataclass(frozen=True, slots=True)
class Cycle:
    """How far a sequence of policies stays from an equilibrium."""

    exploitability: float
    """Mean over the policies."""
    least: float
    """The least of them."""
    turns: int
    """How often the most likely action changes."""


def cycle(game: Floats, policies: Sequence[Floats]) -> Cycle:
    """Measure policies `[A]` in the order in which they came, one or more."""
    gaps = [exploitability(game, policy) for policy in policies]
    favourites = [int(policy.argmax()) for policy in policies]
    turns = sum(one != other for one, other in pairwise(favourites))
    return Cycle(float(np.mean(gaps)), min(gaps), turns)


def scores(won: Floats, rng: np.random.Generator) -> list[float]:
    """Return 1, 0.5 or 0 for payoffs of −1 to 1, by chance (fair on average) for those between."""
    lots = rng.random(len(won)) < (1 + won) / 2
    found: list[float] = np.where(np.isin(won, (-1, 0, 1)), (1 + won) / 2, lots).tolist()
    return found


def play(
    game: Floats, one: Floats, other: Floats, number: int, rng: np.random.Generator
) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return the first player's actions in so many games, and what they won, `[number]` each.

    Args:
        game: payoffs `[A, A]`.
        one: probabilities of the first player's actions, `[A]`.
        other: likewise of the second's.
        number: of games.
        rng: of the actions.
    """
    action, reply = (rng.choice(len(p), number, p=p / p.sum()) for p in (one, other))
    return action, game[action, reply]
