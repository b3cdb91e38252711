"""Self-play by PPO: a policy learns tic-tac-toe from games against its own past, without search.

Each round is of one policy version: games side by side against whom `Opponents` names, one replay,
`epochs` passes of minibatches (Schulman et al. 2017), the next version. Frozen versions are clones
of the one model, so the pool costs no process of its own; it is kept in the trial's `league.json`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bray.checks import even, fraction, layers, not_negative, positive
from bray.games.learner import Learner, layout, moves_of, network
from bray.games.match import PolicyPlayer, openings, play
from bray.games.opponents import LATEST, Opponents, Opposition
from bray.games.tic_tac_toe_report import TIC_TAC_TOE as _GAME
from bray.games.tic_tac_toe_report import TicTacToeReport, against_perfect, report
from bray.games.tournament import complete
from bray.games.version_pool import VersionPool
from bray.goal import Goal, Outcome, conclude
from bray.run import Run
from bray.training.lockstep import next_versions, training
from bray_algo.columns import standardised
from bray_algo.distributions import categorical
from bray_algo.games import Boards
from bray_algo.losses import ppo
from bray_buffer import BufferConfig
from bray_core.cli import check_interrupted
from bray_core.errors import ConfigError
from bray_core.layout import Packed
from bray_model import ModelConfig
from bray_trainer import Trainer, TrainerConfig, to_torch

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Settings of self-play."""

    opponents: Opposition = "pfsp"
    """Whom to play beside the latest: see `Opponents`."""
    latest: float = 0.5
    """Share of games against the policy as it is now, 0 to 1."""
    freeze_every: int = 25
    """Rounds between two versions that join the pool."""
    versions_per_round: int = 8
    """Versions drawn from the pool as opponents of a round."""
    games_per_round: int = 512
    """Games side by side, even: half of them with the first move."""
    opening_moves: int = 3
    """Games begin after 0 to so many random moves, 3 at most: each side has one left to decide."""
    evaluate_every: int = 25
    """Rounds between two evaluations."""
    rating_games: int = 20
    """Games of each two versions of the pool for the final ratings, even; 0 plays none."""
    hidden: tuple[int, ...] = (128, 128)
    """Units of the policy's hidden layers, and of the value function's."""
    learning_rate: float = 1e-3
    """Adam's."""
    epochs: int = 4
    """Passes over each replay."""
    minibatch_size: int = 512
    """Moves of an optimiser step."""
    clip: float = 0.2
    """PPO's ε."""
    entropy_coefficient: float = 0.02
    """Weight of the policy's entropy."""
    gae_lambda: float = 0.95
    """λ; the discount is 1."""

    def __post_init__(self) -> None:
        layers(hidden=self.hidden)
        fraction(latest=self.latest, gae_lambda=self.gae_lambda)
        not_negative(entropy_coefficient=self.entropy_coefficient)
        positive(
            freeze_every=self.freeze_every,
            versions_per_round=self.versions_per_round,
            evaluate_every=self.evaluate_every,
            learning_rate=self.learning_rate,
            epochs=self.epochs,
            minibatch_size=self.minibatch_size,
            clip=self.clip,
        )
        even(2, games_per_round=self.games_per_round)
        even(0, rating_games=self.rating_games)
        if not 0 <= self.opening_moves <= 3:
            raise ConfigError(f"opening_moves: expected 0 to 3, got {self.opening_moves}")


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfPlayOutcome(Outcome):
    """How a run ended; its seconds are without the report's games and the ratings'."""

    report: TicTacToeReport
    """Of games that decided nothing but whether the goal was reached."""
    versions: int
    """In the pool."""
    games: int
    """Of training, in all launches."""


class SelfPlayTrainer(Trainer):
    """PPO over the moves of whole games."""

    def __init__(
        self,
        config: Config,
        seed: int,
        buffer: Any,
        model: Any,
        folder: Path,
        game: Boards = _GAME,
    ) -> None:
        self.part, self.generator = config, torch.Generator().manual_seed(seed)
        settings = TrainerConfig(
            learning_rate=config.learning_rate, max_grad_norm=0.5, checkpoint_every=50, seed=seed
        )
        module = network(game, config.hidden, seed)
        super().__init__(module, buffer, model=model, config=settings, directory=folder)

    def handle(self, replay: Packed) -> Iterator[dict[str, Tensor]]:
        """Yield shuffled minibatches of the moves of one round, `[N, …]`."""
        moves = moves_of(to_torch(replay, self.device), self.part.gae_lambda)
        for _ in range(self.part.epochs):
            order = torch.randperm(len(moves["action"]), generator=self.generator)
            for index in torch.split(order, self.part.minibatch_size):
                yield {name: leaf[index] for name, leaf in moves.items()}

    def loss(self, batch: Any, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return PPO's loss over a minibatch, advantages normalised within it."""
        outputs = self.module(batch["observation"])
        logits = categorical.mask(outputs["logits"], batch["legal"])
        advantage = batch["advantage"]
        return ppo.loss(
            *categorical.log_prob_and_entropy(logits, batch["action"]),
            outputs["value"],
            batch["log_prob"],
            standardised(advantage),
            advantage + batch["value"],
            clip=self.part.clip,
            entropy_coefficient=self.part.entropy_coefficient,
        )


class SelfPlayRun:
    """The components of a run and their rounds.

    Args:
        run: of `bray.init`.
        config: of the algorithm.
        seed: of network, moves and draws.
        game: its rules; `learn` measures tic-tac-toe alone, for another game call `advance`.
    """

    def __init__(self, run: Run, config: Config, seed: int, game: Boards = _GAME) -> None:
        self.run, self.config, self.game, number = run, config, game, config.games_per_round
        example = np.zeros((1, game.observation_size), np.float32)
        batching = ModelConfig(max_batch_size=max(64, number))
        queue = BufferConfig(batch_size=number, capacity=2 * number)
        model = run.model("policy", network(game, config.hidden, seed), example, batching)
        buffer = run.buffer("games", layout(game), queue)
        parts = config, seed, buffer, model, run.experiment.checkpoints, game
        make = partial(SelfPlayTrainer, *parts)
        self.model, self.buffer = model, buffer
        self.trainer = run.trainer("selfplay", make)
        self.moves = 0  # the learner's, in this launch
        self.pool = VersionPool(model, run.experiment.path / "league.json")
        self.rng, self.generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
        self.opponents = Opponents(config.opponents, self.pool, latest=config.latest, rng=self.rng)

    async def learn(self, goal: Goal) -> int:
        """Train until the goal is reached or its frames are used up; return the rounds so far."""
        async with training(self.trainer, [self.model]):
            number = int(self.trainer.progress()["replays"])  # not 0 where it resumes
            while True:
                number += 1
                await self.advance(number)
                is_last = self.moves >= goal.budget
                if number % self.config.evaluate_every and not is_last:
                    continue
                found = await against_perfect(self.model, goal.evaluation_episodes, seed=number)
                games, lost = number * self.config.games_per_round, 100 * found.lost
                logger.info("%d games: %.1f %% lost to perfect play", games, lost)
                figures = {"frames": self.moves, "evaluation_return": found.not_lost}
                self.run.report(figures, lambda: None)  # it saves by itself, every 50 replays
                if goal.is_reached(found.not_lost) or is_last:
                    return number

    async def advance(self, number: int) -> None:
        """Play a round, train on it, and freeze the version that comes of it if it is time."""
        check_interrupted()
        version = self.model.version
        self.buffer.push(await self.round())
        await next_versions(self.trainer, [self.model], [version])
        if number % self.config.freeze_every == 0:
            await self.opponents.freeze(self.game, self.generator)

    async def round(self) -> Packed:
        """Play a batch of games of the current version, and return the learner's moves."""
        number = self.config.games_per_round
        drawn = self.opponents.draw(number, self.config.versions_per_round)
        learner = Learner(self.game, self.model, self.generator, number)
        players: dict[str, Any] = {"learner": learner}
        for name in sorted(set(drawn)):
            model = self.model if name == LATEST else self.pool[name]
            players[name] = PolicyPlayer(self.game, model, self.generator)
        pairs = [("learner", n) if i % 2 else (n, "learner") for i, n in enumerate(drawn)]
        states = openings(self.game, number, self.config.opening_moves, self.rng)
        score = await play(self.game, players, pairs, states)
        score[::2] = 1 - score[::2]  # there the learner moves second
        for name, own in zip(drawn, score.tolist(), strict=True):
            self.opponents.record(name, own)
        self.moves += int(learner.moves.sum())
        return learner.end(score)


def train(
    run: Run, task: str, config: Config | None = None, *, goal: Goal, seed: int = 1
) -> SelfPlayOutcome:
    """Train until the goal is reached or its frames are used up.

    Then every two versions of the pool play, and their results are drawn into the trial's folder.

    Args:
        run: of `bray.init`; an existing trial goes on: weights, counters, pool.
        task: tic-tac-toe.
        config: of the algorithm.
        goal: `episode_return` is the share of `evaluation_episodes` games (an even number) not lost
            to the perfect player, frames are the learner's own moves; `evaluate_at` says nothing
            here.
        seed: of network, moves and draws.
    """
    if task != "tic-tac-toe":
        raise ConfigError(f"task: expected tic-tac-toe, got {task!r}")
    even(2, evaluation_episodes=goal.evaluation_episodes)
    outcome = asyncio.run(_train(SelfPlayRun(run, config or Config(), seed), goal, seed))
    return conclude(run.experiment.path, outcome)


async def _train(player: SelfPlayRun, goal: Goal, seed: int) -> SelfPlayOutcome:
    started, pool = time.monotonic(), player.pool
    rounds = await player.learn(goal)
    seconds = time.monotonic() - started
    found = await report(player.model, goal.evaluation_episodes, seed=1_000_000)
    await complete(pool, _GAME, player.config.rating_games, seed=seed)
    if len(pool):
        pool.draw(pool.path.parent)
    return SelfPlayOutcome(
        reached=goal.is_reached(found.against_perfect.not_lost),
        evaluation_return=found.against_perfect.not_lost,
        frames=player.moves,
        seconds=seconds,
        version=player.model.version,
        report=found,
        versions=len(pool),
        games=rounds * player.config.games_per_round,
    )
