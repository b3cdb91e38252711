"""AlphaStar's league on a matrix game, beside naive self-play with the same learner.

Learners of the league's three roles are mixtures over the actions, trained by policy gradient on
games against whom `League` names; one trainer steps them all. What comes near the equilibrium is
the Nash mixture of the frozen players by their payoff table; no learner does by itself. Naive
self-play, the latest against the latest, goes round in circles.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from bray.games.matrix_game import LAYOUT, Cycle, antisymmetric, cycle, named_game, play
from bray.games.matrix_league import MatrixLeague, MixturePolicy
from bray.goal import Goal, Outcome, conclude
from bray.run import Run
from bray.training.algorithm import Algorithm, NoSettings, Parts, Takes
from bray.training.lockstep import next_versions, training
from bray_algo.distributions import categorical
from bray_algo.league.alphastar import Role
from bray_algo.league.equilibrium import exploitability
from bray_algo.league.intervals import Floats
from bray_algo.league.league_rules import LeagueRules
from bray_algo.losses import a2c
from bray_buffer import BufferConfig
from bray_core.cli import check_interrupted
from bray_core.errors import ConfigError
from bray_core.layout import Packed
from bray_core.settings.ranges import (
    PositiveFloat,
    PositiveInt,
    check_fields,
)
from bray_trainer import Trainer, to_torch

logger = logging.getLogger(__name__)
ROLES: Mapping[str, Role] = {r: r for r in ("main", "main_exploiter", "league_exploiter")}
NAIVE = "naive"


@dataclass(frozen=True, kw_only=True, slots=True)
class LeagueSourceConfig:
    """The games of a round."""

    environment: str
    """What is played: a name of `matrix_game.GAMES`, or the payoffs of a zero-sum game as JSON,
    such as `[[1, -1], [-1, 1]]`."""
    games_per_round: PositiveInt = 128
    """Games of each learner in a round."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class LeagueConfig:
    """Settings of the league; a round is one step of each learner."""

    rounds: PositiveInt = 900
    """Rounds of a run."""
    matches_per_round: PositiveInt = 8
    """Opponents that the league names for each learner, each for an equal share of the games."""
    period: PositiveInt = 60
    """Rounds between two copies of the main learner; after so many a league exploiter is frozen at
    the latest, after twice as many a main exploiter."""
    rating_games: PositiveInt = 400
    """Games of each two frozen players for the final payoff table, whose noise is what is left of
    the exploitability: with 20 it is 0.03 to 0.09."""
    learning_rate: PositiveFloat = 0.5
    """Step size of plain gradient ascent, on payoffs from −1 to 1."""
    spread: PositiveFloat = 0.3
    """Standard deviation of the first logits."""

    def __post_init__(self) -> None:
        check_fields(self)

    def rules(self) -> LeagueRules:
        """Return the league's rules: the paper's shares, periods in rounds."""
        return LeagueRules(
            main_period=self.period,
            main_exploiter_timeout=2 * self.period,
            league_exploiter_timeout=self.period,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class LeagueOutcome(Outcome):
    """How a run ended; exploitabilities are in units of the game's largest payoff.

    The return is minus that of the Nash mixture of the frozen players, by the payoff table of their
    games; frames are the games of the learners of the league, the version is the main one's.
    """

    main_exploitability: float
    """Exploitability of the main learner's own policy at the end, which is no equilibrium by
    itself."""
    naive: Cycle
    """Naive self-play over the last third of the rounds."""
    frozen: int
    """Frozen players."""


class LeagueTrainer(Trainer):
    """Policy gradient (A2C without a critic: the batch's mean reward is the baseline)."""

    def __init__(
        self,
        config: LeagueConfig,
        start: dict[str, Tensor],
        buffers: Any,
        models: Any,
        folder: Path,
    ) -> None:
        self.first, self.rate = start, config.learning_rate
        modules = {name: MixturePolicy(logits) for name, logits in start.items()}
        super().__init__(modules, buffers, model=models, directory=folder)

    def make_optimizer(self) -> dict[str, torch.optim.Optimizer]:
        """Return plain gradient ascent, one for each learner."""
        return {n: torch.optim.SGD(m.parameters(), self.rate) for n, m in self.module.items()}

    def handle(self, replay: dict[str, Packed]) -> Iterator[Any]:
        """Yield the games of the learners by name; one that begins anew does so here."""
        batch = {name: to_torch(packed) for name, packed in replay.items()}
        anew = [name for name, games in batch.items() if bool(games["restart"].any())]
        for name in anew:
            self.module[name].load_state_dict({"logits": self.first[name]})
        yield {name: games for name, games in batch.items() if name not in anew}

    def loss(self, batch: Any, step: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return each learner's loss."""
        losses = {}
        for name, games in batch.items():
            reward = games["reward"]
            logits = self.module[name](torch.zeros(len(reward), 1))
            baseline = reward.mean().expand_as(reward)
            losses[name], _ = a2c.loss(
                categorical.log_prob(logits, games["action"]),
                categorical.entropy(logits),
                baseline,
                reward - baseline,
                reward,
                value_coefficient=0,
                entropy_coefficient=0,
            )
        return losses, {}


class Rounds:
    """The components of a run and its rounds: each a step of every learner."""

    def __init__(self, run: Run, game: Floats, parts: Parts, seed: int) -> None:
        config: LeagueConfig = parts.trainer
        self.game, self.config = game, config
        self.games_per_round: int = parts.source.games_per_round
        noise, size = torch.Generator().manual_seed(seed), len(game)
        start = {n: config.spread * torch.randn(size, generator=noise) for n in (*ROLES, NAIVE)}
        example, number = np.zeros((1, 1), np.float32), self.games_per_round
        self.models = {
            n: run.model(n, MixturePolicy(logits), example) for n, logits in start.items()
        }
        queue = BufferConfig(batch_size=number, capacity=2 * number)
        self.buffers = {name: run.buffer(name, LAYOUT, queue) for name in start}
        made = config, start, self.buffers, self.models, run.experiment.checkpoints
        self.trainer = run.trainer("league", partial(LeagueTrainer, *made))
        path = run.experiment.path / "league.json"
        self.state = MatrixLeague(ROLES, self.models, path, config.rules(), seed)
        self.rng = np.random.default_rng([seed, self.state.rounds])
        self.anew = set[str]()
        """Learners that do not play on: their replay tells the trainer to begin anew."""

    async def play(self, goal: Goal) -> LeagueOutcome:
        """Play the rounds that are left, and the final games."""
        started, league, game = time.monotonic(), self.state, self.game
        before = league.rounds
        naive = await self.learn()
        mixture = await league.nash_mixture(game, self.config.rating_games, self.rng)
        league.save()
        gap, per_round = exploitability(game, mixture), self.games_per_round * len(ROLES)
        logger.info("Nash mixture %s: exploitability %.3f", np.round(mixture, 3).tolist(), gap)
        return LeagueOutcome(
            reached=goal.is_reached(-gap),
            evaluation_return=-gap,
            frames=per_round * (league.rounds - before),
            seconds=time.monotonic() - started,
            version=self.models["main"].version,
            main_exploitability=exploitability(game, await league.policy("main")),
            naive=cycle(game, naive[-1 - self.config.rounds // 3 :]),
            frozen=len(league.versions),
        )

    async def learn(self) -> list[Floats]:
        """Play on; return naive self-play's policy before each round and after all."""
        models, naive, league = list(self.models.values()), [], self.state
        async with training(self.trainer, models):
            while league.rounds < self.config.rounds:
                check_interrupted()
                versions = [model.version for model in models]
                naive.append(await self.round())
                await next_versions(self.trainer, models, versions)
                self.anew = {name for name in ROLES if league.advance(name)}
                league.rounds += 1
                if league.rounds % 100 == 0:
                    told = np.round(naive[-1], 2).tolist(), exploitability(self.game, naive[-1])
                    logger.info("round %d: naive %s, exploitability %.3f", league.rounds, *told)
        return [*naive, await league.policy(NAIVE)]

    async def round(self) -> Floats:
        """Play a round of every learner, hand its games to the trainer; return naive self-play."""
        policies = {name: await self.state.policy(name) for name in self.models}
        for name, buffer in self.buffers.items():
            block = LAYOUT.empty(self.games_per_round)
            games: Any = LAYOUT.views(block)
            games["restart"][:] = name in self.anew
            if name not in self.anew:
                await self._play(name, policies, games)
            buffer.push(Packed(LAYOUT, block))
        return policies[NAIVE]

    async def _play(self, name: str, policies: dict[str, Floats], games: Any) -> None:
        """Fill a learner's games, each match's with those against one opponent."""
        share = self.games_per_round // self.config.matches_per_round
        for first in range(0, self.games_per_round, share):
            opponent = NAIVE if name == NAIVE else self.state.league.opponent(name).opponent
            if opponent not in policies:
                policies[opponent] = await self.state.policy(opponent)
            at = slice(first, first + share)
            action, won = play(self.game, policies[name], policies[opponent], share, self.rng)
            games["action"][at], games["reward"][at] = action, won
            if name != NAIVE:
                self.state.record(name, opponent, won, self.rng)


class MatrixGameLeague(Algorithm[LeagueConfig]):
    """Main learners and exploiters play each other and their own past, on a matrix game.

    A return is minus the exploitability of the Nash mixture of the frozen players; frames are the
    learners' games.
    """

    title = "league"
    example = "rock-paper-scissors"
    pacing = "rounds"
    takes = Takes(plays="games")
    serves = "function"
    short_run = ("trainer.rounds=3", "trainer.rating_games=2")
    configs: ClassVar[dict[str, type[Any]]] = {
        "model": NoSettings,
        "source": LeagueSourceConfig,
        "actor": NoSettings,
        "trainer": LeagueConfig,
    }

    def check(self) -> None:
        """Refuse games that the matches cannot share out."""
        games, matches = self.parts.source.games_per_round, self.config.matches_per_round
        if games % matches:
            raise ConfigError(
                f"source.games_per_round: expected a multiple of matches_per_round={matches}, "
                f"got {games}"
            )

    def train(self, run: Run, *, goal: Goal, seed: int = 1) -> LeagueOutcome:
        """Play all rounds, then every two frozen players, and mix those by their payoff table."""
        game = antisymmetric(named_game(self.parts.source.environment))
        league = Rounds(run, game, self.parts, seed)
        outcome = asyncio.run(league.play(goal))
        run.report(outcome.figures(), lambda: None)  # its trainer saved when it stopped
        return conclude(run.experiment.path, outcome)
