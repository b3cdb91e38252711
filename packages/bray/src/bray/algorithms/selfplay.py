"""Self-play by PPO: a policy learns tic-tac-toe from games against its own past, without search.

Each round is of one policy version: games side by side against whom `Opponents` names, one replay,
`epochs` passes of minibatches (Schulman et al. 2017), the next version. Frozen versions are clones
of the one model, so the pool costs no process of its own; it is kept in the trial's `league.json`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from bray.callbacks import EvaluationResult
from bray.games.match import PolicyPlayer, openings, play
from bray.games.opponents import LATEST, OpponentChoice, Opponents
from bray.games.recording_player import RecordingPlayer, layout, moves_of, network
from bray.games.tic_tac_toe_report import TIC_TAC_TOE as _GAME
from bray.games.tic_tac_toe_report import TicTacToeReport, against_perfect, report
from bray.games.tournament import play_tournament
from bray.games.version_pool import VersionPool
from bray.goal import Goal, Outcome, conclude
from bray.run import Run
from bray.training.algorithm import Algorithm, NoSettings, Parts, Takes
from bray.training.lockstep import next_versions, training
from bray_algo.distributions import categorical
from bray_algo.games import Boards
from bray_algo.losses import ppo
from bray_algo.losses.reductions import standardised
from bray_buffer import BufferConfig
from bray_core.cli import check_interrupted
from bray_core.errors import ConfigError
from bray_core.layout import Packed
from bray_core.settings.ranges import (
    Fraction,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Range,
    check_fields,
)
from bray_model import ModelConfig
from bray_trainer import Trainer, TrainerConfig, to_torch

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfPlayAgentConfig:
    """Whom the learner plays."""

    opponents: OpponentChoice = "pfsp"
    """Whom to play beside the latest: see `Opponents`."""
    latest: Fraction = 0.5
    """Share of games against the policy as it is now. 1 is naive self-play, which can go round in
    circles."""
    opening_moves: Annotated[int, Range(minimum=0, maximum=3)] = 3
    """Games begin after 0 to so many random moves: each side has one left to decide."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfPlaySourceConfig:
    """The games of a round."""

    environment: str
    """What is played: `tic-tac-toe`."""
    games_per_round: Annotated[int, Range(minimum=2, multiple_of=2)] = 512
    """Games side by side, half of them with the first move."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfPlayConfig:
    """The hyperparameters of self-play by PPO."""

    freeze_every: PositiveInt = 25
    """Rounds between two versions that join the pool."""
    versions_per_round: PositiveInt = 8
    """Versions drawn from the pool as opponents of a round."""
    evaluate_every: PositiveInt = 25
    """Rounds between two evaluations."""
    rating_games: Annotated[int, Range(minimum=0, multiple_of=2)] = 20
    """Games of each two versions of the pool for the final ratings; 0 plays none."""
    learning_rate: PositiveFloat = 1e-3
    """Adam's step size. 1e-4 to 1e-3."""
    epochs: PositiveInt = 4
    """Passes over each replay. 2 to 10."""
    minibatch_size: PositiveInt = 512
    """Moves of an optimiser step."""
    clip: PositiveFloat = 0.2
    """Clip range ε of the probability ratio. 0.1 to 0.3."""
    entropy_coefficient: NonNegativeFloat = 0.02
    """Weight of the entropy bonus: without one, self-play settles on a single line of play."""
    gae_lambda: Fraction = 0.95
    """λ of generalised advantage estimation; the discount is 1."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfPlayOutcome(Outcome):
    """How a run ended; its seconds are without the report's games and the ratings'."""

    report: TicTacToeReport
    """Results of games that decided nothing but whether the goal was reached."""
    versions: int
    """In the pool."""
    games: int
    """Games of training, in all launches."""


class SelfPlayTrainer(Trainer):
    """PPO over the moves of whole games."""

    def __init__(
        self,
        config: SelfPlayConfig,
        hidden: tuple[int, ...],
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
        module = network(game, hidden, seed)
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
        run: what makes the components.
        parts: settings of the run.
        seed: seed of network, moves and draws.
        game: its rules; `learn` measures tic-tac-toe alone, for another game call `advance`.
    """

    def __init__(self, run: Run, parts: Parts, seed: int, game: Boards = _GAME) -> None:
        self.run, self.parts, self.game = run, parts, game
        config: SelfPlayConfig = parts.trainer
        self.config, hidden, number = config, parts.model.hidden, parts.source.games_per_round
        example = np.zeros((1, game.observation_size), np.float32)
        batching = ModelConfig(max_batch_size=max(64, number))
        queue = BufferConfig(batch_size=number, capacity=2 * number)
        model = run.model("policy", network(game, hidden, seed), example, batching)
        buffer = run.buffer("games", layout(game), queue)
        made = config, hidden, seed, buffer, model, run.experiment.checkpoints, game
        make = partial(SelfPlayTrainer, *made)
        self.model, self.buffer = model, buffer
        self.trainer = run.trainer("selfplay", make)
        self.moves = 0  # the learner's, in this launch
        self.pool = VersionPool(model, run.experiment.path / "league.json")
        self.rng, self.generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
        self.opponents = Opponents(
            parts.agent.opponents, self.pool, latest=parts.agent.latest, rng=self.rng
        )

    async def learn(self, goal: Goal) -> int:
        """Train until the goal is reached or its frames are used up; return the rounds so far."""
        async with training(self.trainer, [self.model]):
            number = int(self.trainer.progress()["replays"])  # not 0 where it resumes
            while True:
                number += 1
                await self.advance(number)
                is_last = self.moves >= goal.budget or bool(self.run.callbacks.stopped)
                if number % self.config.evaluate_every and not is_last:
                    continue
                found = await against_perfect(self.model, goal.evaluation_episodes, seed=number)
                games, lost = number * self.parts.source.games_per_round, 100 * found.lost
                logger.info("%d games: %.1f %% lost to perfect play", games, lost)
                figures = {"frames": self.moves, "evaluation_return": found.not_lost}
                self.run.callbacks.evaluation(
                    EvaluationResult(
                        returns=(),
                        mean_return=found.not_lost,
                        version=self.model.version,
                        frames=self.moves,
                    )
                )
                self.run.report(figures, lambda: None)  # it saves by itself, every 50 replays
                is_last = is_last or bool(self.run.callbacks.stopped)
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
        number = self.parts.source.games_per_round
        drawn = self.opponents.draw(number, self.config.versions_per_round)
        learner = RecordingPlayer(self.game, self.model, self.generator, number)
        players: dict[str, Any] = {"learner": learner}
        for name in sorted(set(drawn)):
            model = self.model if name == LATEST else self.pool[name]
            players[name] = PolicyPlayer(self.game, model, self.generator)
        pairs = [("learner", n) if i % 2 else (n, "learner") for i, n in enumerate(drawn)]
        states = openings(self.game, number, self.parts.agent.opening_moves, self.rng)
        score = await play(self.game, players, pairs, states)
        score[::2] = 1 - score[::2]  # there the learner moves second
        for name, own in zip(drawn, score.tolist(), strict=True):
            self.opponents.record(name, own)
        self.moves += int(learner.moves.sum())
        return learner.end(score)


async def _train(player: SelfPlayRun, goal: Goal, seed: int) -> SelfPlayOutcome:
    started, pool = time.monotonic(), player.pool
    rounds = await player.learn(goal)
    seconds = time.monotonic() - started
    found = await report(player.model, goal.evaluation_episodes, seed=1_000_000)
    await play_tournament(pool, _GAME, player.config.rating_games, seed=seed)
    return SelfPlayOutcome(
        reached=goal.is_reached(found.against_perfect.not_lost),
        evaluation_return=found.against_perfect.not_lost,
        frames=player.moves,
        seconds=seconds,
        version=player.model.version,
        report=found,
        versions=len(pool),
        stopped=player.run.callbacks.stopped,
        games=rounds * player.parts.source.games_per_round,
    )


class SelfPlayPPO(Algorithm[SelfPlayConfig]):
    """A policy learns tic-tac-toe from games against its own past.

    A return is the share of the evaluation's games (an even number) that are not lost to the
    perfect player; frames are the learner's own moves.
    """

    title = "self-play"
    example = "tic-tac-toe"
    pacing = "rounds"
    takes = Takes(plays="games")
    serves = "function"
    short_run = ("goal.max_frames=512", "trainer.rating_games=2")
    configs: ClassVar[dict[str, type[Any]]] = {
        "agent": SelfPlayAgentConfig,
        "source": SelfPlaySourceConfig,
        "actor": NoSettings,
        "trainer": SelfPlayConfig,
    }

    @classmethod
    def defaults(cls, task: str) -> Mapping[str, Any]:
        """Return a network that is large enough for all positions."""
        return {"model.hidden": (128, 128)}

    def check(self) -> None:
        """Refuse games that have no perfect player to measure against."""
        task = self.parts.source.environment
        if task != "tic-tac-toe":
            raise ConfigError(f"source.environment: expected tic-tac-toe, got {task!r}")

    def train(self, run: Run, *, goal: Goal, seed: int = 1) -> SelfPlayOutcome:
        """Play rounds, then every two versions of the pool; see `Algorithm`."""
        if goal.evaluation_episodes % 2:
            raise ConfigError(
                f"goal.evaluation_episodes: expected an even number, got {goal.evaluation_episodes}"
            )
        outcome = asyncio.run(_train(SelfPlayRun(run, self.parts, seed), goal, seed))
        conclude(run.experiment.path, outcome)
        run.callbacks.end(outcome)
        return outcome
