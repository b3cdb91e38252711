"""AlphaZero: a search that plays itself, and a network that learns what the search found.

Silver et al. 2018, "A general reinforcement learning algorithm that masters chess, shogi, and Go
through self-play".

    self-play ──leaves of all games──► model        a round: `moves_per_round` moves in each of
        │ positions                      ▲ version   `num_games` games, then training on them
        ▼                                │ n + 1
      replay ──minibatches, turned──► trainer

In one process playing and training take turns, so the same seed is the same run. On Ray workers
play and the trainer trains, each in processes of their own; the replay keeps the two in proportion.
"""

from __future__ import annotations

import itertools
import logging
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
from bray.training.loop import Loop, Turn
from bray_algo.games import RowGame
from bray_algo.search import alphazero
from bray_algo.search.mcts import SearchConfig
from bray_buffer import ReplayConfig
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
    num_workers: int = 1
    """Number of workers on Ray that play, each `num_games` games."""

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
    measure = yardstick(task)
    game = measure.game
    module = network(game, config.hidden, seed)
    batching = ModelConfig(max_batch_size=config.num_games)
    model = run.model("policy", module, game.observation(game.initial(1)), batching)
    replay = config.replay(seed, keeps_proportion=not run.is_local)
    buffer: Any = run.buffer("positions", position_layout(game), replay)
    parts = game, config, seed, model, buffer, run.experiment.checkpoints
    evaluation = _Evaluation(measure, module, model, config, goal, seed)
    outcome = Loop(
        run,
        f"AlphaZero on {task}",
        trainer=run.trainer("alphazero", partial(AlphaZeroTrainer, *parts)),
        source=run.rollouts(
            "self-play",
            partial(_self_player, game, config, model, buffer, seed),
            steps=config.moves_per_round,
            num_workers=config.num_workers,
        ),
        model=model,
        turn=Turn(
            steps=config.moves_per_round,
            replays_per_frame=config.samples_per_position / replay.batch_size,
            warmup_frames=replay.min_size,
        ),
        goal=goal,
        evaluate=evaluation,
        evaluate_every=config.evaluate_every,
        unit="positions",
    ).until_goal()
    measured = AlphaZeroOutcome(**asdict(outcome), measured=evaluation.found)
    return conclude(run.experiment.path, measured)


def _self_player(
    game: RowGame, config: Config, model: Any, buffer: BufferProtocol, seed: int, worker: int
) -> SelfPlayer:
    """Make the player of a worker, in its process."""
    return SelfPlayer(
        game,
        model,
        buffer,
        num_games=config.num_games,
        search=SearchConfig(num_simulations=config.num_simulations, noise_alpha=config.noise_alpha),
        num_random_moves=config.num_random_moves,
        seed=seed + 1000 * worker,
    )


class _Evaluation:
    """Measures the current version against the benchmark opponent, in new games each time."""

    found: MeasuredOpponent

    def __init__(
        self, measure: Yardstick, module: Any, model: Any, config: Config, goal: Goal, seed: int
    ) -> None:
        self._yardstick = measure
        self._module = module
        self._model = model
        self._config = config
        self._goal = goal
        self._seeds = itertools.count(1000 * seed + 1)

    def __call__(self) -> list[float]:
        """Return the share of games that count, as the only number."""
        version, weights = self._model.weights()
        self._module.load_state_dict({k: torch.tensor(v) for k, v in weights.items()})
        self.found = self._measure()
        if self._goal.is_reached(self.found.share):
            # The best of many looks flatters: another one, of new games, is what counts.
            self.found = self._measure()
        logger.info("version %d: %s", version, self.found)
        return [self.found.share]

    def _measure(self) -> MeasuredOpponent:
        return self._yardstick.measure(
            alphazero.evaluator(self._module),
            self._goal.evaluation_episodes,
            num_simulations=self._config.play_simulations,
            seed=next(self._seeds),
        )
