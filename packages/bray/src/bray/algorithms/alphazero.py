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
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bray.checks import layers, positive
from bray.games.benchmark_opponents import MeasuredOpponent, Yardstick, yardstick
from bray.games.self_player import SelfPlayer, network, position_layout, turned
from bray.goal import Goal, Outcome, conclude
from bray.run import Run
from bray.training.generator import KeepsGenerator
from bray_algo.games import RowGame
from bray_algo.search import alphazero
from bray_algo.search.mcts import SearchConfig
from bray_buffer import ReplayConfig
from bray_core.cli import check_interrupted
from bray_core.layout import Packed
from bray_core.protocols import BufferProtocol
from bray_model import ModelConfig
from bray_trainer import Trainer, TrainerConfig, to_torch

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Of the algorithm; the defaults are connect four's."""

    num_games: int = 256
    """That play side by side: the rows of a batch."""
    num_simulations: int = 40
    """Of a move in self-play."""
    play_simulations: int = 400
    """Of a move in an evaluation."""
    noise_alpha: float = 1.0
    """Of the root's Dirichlet noise, about 10 / (legal moves)."""
    num_random_moves: int = 12
    """At the beginning of a game, drawn in proportion to the visits."""
    hidden: tuple[int, ...] = (256, 128)
    """Units of the network's fully connected layers."""
    learning_rate: float = 1e-3
    """AdamW's."""
    minibatch_size: int = 512
    """Positions of an optimiser step."""
    minibatches: int = 16
    """Of a replay: optimiser steps between two versions."""
    samples_per_position: float = 8.0
    """How often a position is trained on, in the mean."""
    capacity: int = 150_000
    """Positions that the replay holds."""
    moves_per_round: int = 8
    """Of every game, between two trainings."""
    evaluate_every: int = 100_000
    """Positions between two evaluations."""

    def __post_init__(self) -> None:
        layers(hidden=self.hidden)
        positive(**{name: value for name, value in asdict(self).items() if name != "hidden"})

    def replay(self, seed: int, keeps_proportion: bool) -> ReplayConfig:
        """Return the replay's settings: on Ray it has to keep playing and training together."""
        size = self.minibatches * self.minibatch_size
        return ReplayConfig(
            capacity=self.capacity,
            batch_size=size,
            min_size=size // 2,
            seed=seed,
            samples_per_insert=self.samples_per_position if keeps_proportion else None,
            error_margin=4.0 * size if keeps_proportion else None,
        )


DEFAULTS = {
    "tic-tac-toe": Config(
        num_simulations=32,
        play_simulations=64,
        num_random_moves=6,
        moves_per_round=4,
        hidden=(128, 64),
        capacity=30_000,
        evaluate_every=20_000,
    )
}
"""By task, where others suit it better."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AlphaZeroOutcome(Outcome):
    """How a run ended; its return is `measured.share`."""

    measured: MeasuredOpponent


class AlphaZeroTrainer(KeepsGenerator, Trainer):
    """One replay is `minibatches` steps, each on positions turned by a symmetry of the board."""

    def __init__(
        self,
        game: RowGame,
        config: Config,
        seed: int,
        model: Any,
        buffer: BufferProtocol,
        directory: Path | None = None,
    ) -> None:
        self.minibatch_size = config.minibatch_size
        self.symmetries = [tuple(map(torch.from_numpy, pair)) for pair in game.symmetries()]
        self.generator = torch.Generator().manual_seed(seed)
        trainer = TrainerConfig(learning_rate=config.learning_rate, prefetch=0, seed=seed)
        module = network(game, config.hidden, seed)
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
        return alphazero.alphazero_loss(
            out["logits"], out["value"], batch["policy"], batch["outcome"]
        )


def train(
    run: Run, task: str, config: Config | None = None, *, goal: Goal, seed: int = 1
) -> AlphaZeroOutcome:
    """Play and train until the goal is reached or its frames are used up.

    Args:
        run: of `bray.init`; an existing trial goes on from its checkpoint and its replay.
        task: tic-tac-toe, connect-four or connect-four-rows, as in `YARDSTICKS`.
        config: of the algorithm; None: what suits the task.
        goal: `episode_return` is the share of games not lost (tic-tac-toe) or won (connect four),
            frames are positions of ended games; `evaluate_at` says nothing here.
        seed: of network, noise, moves and draws.
    """
    config = config or DEFAULTS.get(task, Config())
    return AlphaZero(run, yardstick(task), config, seed).until(goal)


class AlphaZero:
    """The components of one launch."""

    def __init__(self, run: Run, measure: Yardstick, config: Config, seed: int) -> None:
        self._run, self._yardstick, self._config, self._seed = run, measure, config, seed
        game = measure.game
        self._module = network(game, config.hidden, seed)
        batching = ModelConfig(max_batch_size=config.num_games)
        self.model = run.model("policy", self._module, game.observation(game.initial(1)), batching)
        self._replay = config.replay(seed, keeps_proportion=not run.is_local)
        self._buffer = run.buffer("positions", position_layout(game), self._replay)
        parts = game, config, seed, self.model, self._buffer, run.experiment.checkpoints
        self._trainer: Any = run.trainer("alphazero", partial(AlphaZeroTrainer, *parts))
        search = SearchConfig(
            num_simulations=config.num_simulations, noise_alpha=config.noise_alpha
        )
        self._player = SelfPlayer(
            game,
            self.model,
            self._buffer,
            num_games=config.num_games,
            search=search,
            num_random_moves=config.num_random_moves,
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
            samples = int(self._frames * self._config.samples_per_position)
            due = samples // self._replay.batch_size - self._replays
            if due > 0:
                self._trainer.run(due)
                self._replays += due

    def _evaluate(self, goal: Goal, seed: int) -> AlphaZeroOutcome:
        """Return what the version now reaches."""
        version, weights = self.model.weights()
        self._module.load_state_dict({k: torch.tensor(v) for k, v in weights.items()})
        found = self._yardstick.measure(
            alphazero.evaluator(self._module),
            goal.evaluation_episodes,
            num_simulations=self._config.play_simulations,
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
