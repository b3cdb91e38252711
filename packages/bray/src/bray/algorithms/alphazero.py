"""AlphaZero: a search that plays itself, and a network that learns what the search found.

Silver et al. 2018, "A general reinforcement learning algorithm that masters chess, shogi, and Go
through self-play".

    self-play ──leaves of all games──► model        a round: `moves_per_round` moves in each of
        │ positions                      ▲ version   `num_games` games, then training on them
        ▼                                │ n + 1
      replay ──minibatches, turned──► trainer

In one process playing and training take turns, so the same seed is the same run. On Ray the trainer
works in a process of its own while this one plays on; the replay keeps the two in proportion.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from bray.games.benchmark_opponents import BenchmarkResult, benchmark_opponent
from bray.games.self_player import SelfPlayer, network, position_layout, turned
from bray.goal import Goal, Outcome, conclude
from bray.run import Run
from bray.training.algorithm import Algorithm, NoSettings, Parts
from bray.training.generator import KeepsGenerator
from bray_algo.games import RowGame
from bray_algo.losses.alphazero import loss as alphazero_loss
from bray_algo.search import alphazero
from bray_algo.search.mcts import SearchConfig
from bray_buffer import ReplayConfig
from bray_core.cli import check_interrupted
from bray_core.layout import Packed
from bray_core.protocols import BufferProtocol
from bray_core.settings.ranges import (
    PositiveFloat,
    PositiveInt,
    check_fields,
)
from bray_model import ModelConfig
from bray_trainer import Trainer, TrainerConfig, to_torch

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchAgentConfig:
    """How moves are searched for; the defaults are connect four's."""

    num_simulations: PositiveInt = 40
    """Simulations of a move in self-play. More of them teach more a game, and take longer. 16 to
    800."""
    play_simulations: PositiveInt = 400
    """Simulations of a move in an evaluation."""
    noise_alpha: PositiveFloat = 1.0
    """α of the root's Dirichlet noise, about 10 / (legal moves). A small α favours one move."""
    num_random_moves: PositiveInt = 12
    """Moves at the beginning of a game that are drawn in proportion to the visits, so that games
    differ."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class PositionReplaySettings:
    """What the replay of positions holds."""

    capacity: PositiveInt = 150_000
    """Positions that the replay holds, the newest ones."""
    samples_per_position: PositiveFloat = 8.0
    """How often a position is trained on, on average. More learn more from it, until the network
    knows the replay by heart. 1 to 16."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class BoardGameSourceConfig:
    """Games that a search plays against itself."""

    environment: str
    """What is played: `tic-tac-toe`, `connect-four` or `connect-four-rows`."""
    num_games: PositiveInt = 256
    """Games side by side: the rows of a batch."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class AlphaZeroConfig:
    """AlphaZero's hyperparameters; the defaults are connect four's."""

    learning_rate: PositiveFloat = 1e-3
    """AdamW's step size. 1e-4 to 1e-3."""
    minibatch_size: PositiveInt = 512
    """Positions of an optimiser step."""
    minibatches: PositiveInt = 16
    """Minibatches of a replay: optimiser steps between two versions."""
    moves_per_round: PositiveInt = 8
    """Moves of every game between two trainings."""
    evaluate_every: PositiveInt = 100_000
    """Positions between two evaluations."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class AlphaZeroOutcome(Outcome):
    """How a run ended; its return is `measured.share`."""

    measured: BenchmarkResult


class AlphaZeroTrainer(KeepsGenerator, Trainer):
    """One replay is `minibatches` steps, each on positions turned by a symmetry of the board."""

    def __init__(
        self,
        game: RowGame,
        hidden: tuple[int, ...],
        config: AlphaZeroConfig,
        seed: int,
        model: Any,
        buffer: BufferProtocol,
        directory: Path | None = None,
    ) -> None:
        self.minibatch_size = config.minibatch_size
        self.symmetries = [tuple(map(torch.from_numpy, pair)) for pair in game.symmetries()]
        self.generator = torch.Generator().manual_seed(seed)
        trainer = TrainerConfig(learning_rate=config.learning_rate, prefetch=0, seed=seed)
        module = network(game, hidden, seed)
        super().__init__(module, buffer, model=model, config=trainer, directory=directory)

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return AdamW: its decay stands for the paper's ‖θ‖²."""
        return torch.optim.AdamW(self.module.parameters(), self.config.learning_rate)

    def handle(self, replay: Packed) -> Iterator[dict[str, Tensor]]:
        """Yield minibatches, all positions of one turned alike."""
        positions = to_torch(replay, self.device)
        for start in range(0, len(replay.block), self.minibatch_size):
            drawn = int(torch.randint(len(self.symmetries), (), generator=self.generator))
            rows = {n: leaf[start : start + self.minibatch_size] for n, leaf in positions.items()}
            yield turned(rows, *self.symmetries[drawn])

    def loss(self, batch: dict[str, Tensor], step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the paper's loss."""
        out = self.module(batch["observation"])
        return alphazero_loss(out["logits"], out["value"], batch["policy"], batch["outcome"])


def replay_config(parts: Parts, seed: int, *, keeps_proportion: bool) -> ReplayConfig:
    """Return the replay's settings: on Ray it has to keep playing and training together."""
    size = parts.trainer.minibatches * parts.trainer.minibatch_size
    return ReplayConfig(
        capacity=parts.buffer.capacity,
        batch_size=size,
        min_size=size // 2,
        seed=seed,
        samples_per_insert=parts.buffer.samples_per_position if keeps_proportion else None,
        error_margin=4.0 * size if keeps_proportion else None,
    )


class SearchRun:
    """The components of one launch."""

    def __init__(self, run: Run, parts: Parts, seed: int) -> None:
        config: AlphaZeroConfig = parts.trainer
        measure = benchmark_opponent(parts.source.environment)
        self._run, self._opponent, self._config, self._seed = run, measure, config, seed
        self._agent, self._samples_per_position = parts.agent, parts.buffer.samples_per_position
        game = measure.game
        self._module = network(game, parts.model.hidden, seed)
        batching = ModelConfig(max_batch_size=parts.source.num_games)
        self.model = run.model("policy", self._module, game.observation(game.initial(1)), batching)
        self._replay = replay_config(parts, seed, keeps_proportion=not run.is_local)
        self._buffer = run.buffer("positions", position_layout(game), self._replay)
        made = game, parts.model.hidden, config, seed, self.model, self._buffer
        self._trainer: Any = run.trainer(
            "alphazero", partial(AlphaZeroTrainer, *made, run.experiment.checkpoints)
        )
        search = SearchConfig(
            num_simulations=parts.agent.num_simulations, noise_alpha=parts.agent.noise_alpha
        )
        self._player = SelfPlayer(
            game,
            self.model,
            self._buffer,
            num_games=parts.source.num_games,
            search=search,
            num_random_moves=parts.agent.num_random_moves,
            seed=seed,
        )
        self._started, self._frames, self._replays = time.monotonic(), 0, 0

    def until(self, goal: Goal) -> AlphaZeroOutcome:
        """Play, train and evaluate by turns."""
        seeds = itertools.count(1000 * self._seed + 1)  # no two evaluations play the same games
        evaluate_at = self._config.evaluate_every
        if not self._run.is_local:
            self._trainer.start()
        while True:
            self.play_and_train()
            is_last = self._frames >= goal.budget
            if self._frames < evaluate_at and not is_last:
                continue
            evaluate_at += self._config.evaluate_every
            outcome = self._evaluate(goal, next(seeds))
            if outcome.reached:
                # The best of many looks flatters: another one, of new games, is what counts.
                outcome = self._evaluate(goal, next(seeds))
            if outcome.reached or is_last:
                return conclude(self._run.experiment.path, outcome)

    def play_and_train(self) -> None:
        """Play some moves of each game; then train, on Ray as much as the replay lets."""
        check_interrupted()
        self._trainer.wait(0)  # raises what it failed with
        self._frames += self._player.play(self._config.moves_per_round)
        if self._run.is_local and self._frames >= self._replay.min_size:
            samples = int(self._frames * self._samples_per_position)
            due = samples // self._replay.batch_size - self._replays
            if due > 0:
                self._trainer.run(due)
                self._replays += due

    def _evaluate(self, goal: Goal, seed: int) -> AlphaZeroOutcome:
        """Return what the version now reaches."""
        version, weights = self.model.weights()
        self._module.load_state_dict({k: torch.tensor(v) for k, v in weights.items()})
        found = self._opponent.measure(
            alphazero.evaluator(self._module),
            goal.evaluation_episodes,
            num_simulations=self._agent.play_simulations,
            seed=seed,
        )
        logger.info("%d positions, version %d: %s", self._frames, version, found)
        outcome = AlphaZeroOutcome(
            reached=goal.is_reached(found.share),
            evaluation_return=found.share,
            measured=found,
            frames=self._frames,
            seconds=time.monotonic() - self._started,
            version=version,
        )
        self._run.report(outcome.figures(), self._save)
        return outcome

    def _save(self) -> None:
        if self._run.is_local:
            self._trainer.run(0)


class AlphaZero(Algorithm[AlphaZeroConfig]):
    """A search plays itself, and a network learns what the search found.

    Frames are positions of ended games; a return is the share of games not lost (tic-tac-toe) or
    won (connect four).
    """

    title = "AlphaZero"
    example = "tic-tac-toe"
    pacing = "ratio"
    serves = "function"
    short_run = ("goal.max_frames=1024",)
    configs: ClassVar[dict[str, type[Any]]] = {
        "agent": SearchAgentConfig,
        "buffer": PositionReplaySettings,
        "source": BoardGameSourceConfig,
        "actor": NoSettings,
        "trainer": AlphaZeroConfig,
    }

    @classmethod
    def defaults(cls, task: str) -> Mapping[str, Any]:
        """Return connect four's settings, or those of a game as small as tic-tac-toe."""
        if task != "tic-tac-toe":
            return {"model.hidden": (256, 128)}
        return {
            "model.hidden": (128, 64),
            "agent.num_simulations": 32,
            "agent.play_simulations": 64,
            "agent.num_random_moves": 6,
            "buffer.capacity": 30_000,
            "trainer.moves_per_round": 4,
            "trainer.evaluate_every": 20_000,
        }

    def train(self, run: Run, *, goal: Goal, seed: int = 1) -> Outcome:
        """Play and train; see `Algorithm`."""
        return SearchRun(run, self.parts, seed).until(goal)
