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
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from bray.games.benchmark_opponents import BenchmarkOpponent, BenchmarkResult, benchmark_opponent
from bray.games.board_game import PREFIX
from bray.games.self_player import SelfPlayer, network, position_layout, turned
from bray.goal import Goal, Outcome, conclude
from bray.run import Run
from bray.training.algorithm import Algorithm, Parts, Takes
from bray.training.device import DeviceConfig, num_gpus, playing_device
from bray.training.generator import KeepsGenerator
from bray.training.loop import Loop, Turn
from bray.training.schedules.scheduled_trainer import FollowsSchedules, ReplayClock, with_schedules
from bray_actor.multi_agent.making import OPEN_SPIEL
from bray_algo.games import PlanesGame
from bray_algo.losses.alphazero import loss as alphazero_loss
from bray_algo.search import alphazero
from bray_algo.search.mcts import SearchConfig
from bray_buffer import ReplayConfig
from bray_core.errors import ConfigError
from bray_core.layout import Packed
from bray_core.protocols import BufferProtocol
from bray_core.settings.ranges import (
    PositiveFloat,
    PositiveInt,
    check_fields,
)
from bray_core.settings.schedule import ScheduledPositiveFloat, value_at
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
    """What is played: `tic-tac-toe`, `connect-four`, `connect-four-rows`, or a game of OpenSpiel
    for two players without chance or hidden cards, `open_spiel:breakthrough(rows=6,columns=6)`."""
    num_games: PositiveInt = 256
    """Games side by side: the rows of a batch."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class AlphaZeroConfig(DeviceConfig):
    """AlphaZero's hyperparameters; the defaults are connect four's."""

    learning_rate: ScheduledPositiveFloat = 1e-3
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


class AlphaZeroTrainer(KeepsGenerator, FollowsSchedules, Trainer):
    """One replay is `minibatches` steps, each on positions turned by a symmetry of the board."""

    def __init__(
        self,
        game: PlanesGame,
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
        trainer = TrainerConfig(
            learning_rate=value_at(config.learning_rate, 0),
            prefetch=0,
            device=config.device,
            seed=seed,
        )
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


def _self_player(
    game: PlanesGame, parts: Parts, model: Any, buffer: BufferProtocol, seed: int, worker: int
) -> SelfPlayer:
    """Make the player of a worker, in its process."""
    agent = parts.agent
    return SelfPlayer(
        game,
        model,
        buffer,
        num_games=parts.source.num_games,
        search=SearchConfig(num_simulations=agent.num_simulations, noise_alpha=agent.noise_alpha),
        num_random_moves=agent.num_random_moves,
        seed=seed + 1000 * worker,
    )


class _Evaluation:
    """Measures the current version against the benchmark opponent, in new games each time."""

    found: BenchmarkResult

    def __init__(
        self,
        opponent: BenchmarkOpponent,
        module: Any,
        model: Any,
        num_simulations: int,
        goal: Goal,
        seed: int,
    ) -> None:
        self._opponent = opponent
        self._module = module
        self._model = model
        self._num_simulations = num_simulations
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

    def _measure(self) -> BenchmarkResult:
        return self._opponent.measure(
            alphazero.evaluator(self._module),
            self._goal.evaluation_episodes,
            num_simulations=self._num_simulations,
            seed=next(self._seeds),
        )


class AlphaZero(Algorithm[AlphaZeroConfig]):
    """A search plays itself, and a network learns what the search found.

    Frames are positions of ended games; a return is the share of games not lost (tic-tac-toe) or
    won (all others) against an opponent that looks some moves ahead.
    """

    title = "AlphaZero"
    example = "tic-tac-toe"
    pacing = "ratio"
    takes = Takes(plays="games")
    serves = "function"
    short_run = ("goal.max_frames=1024",)
    configs: ClassVar[dict[str, type[Any]]] = {
        "agent": SearchAgentConfig,
        "buffer": PositionReplaySettings,
        "source": BoardGameSourceConfig,
        "trainer": AlphaZeroConfig,
    }

    @classmethod
    def defaults(cls, task: str) -> Mapping[str, Any]:
        """Return connect four's settings, or those of a game as small as tic-tac-toe.

        OpenSpiel's positions cost a Python call each, so fewer are searched at a time.
        """
        if task.startswith(OPEN_SPIEL):
            few = {"source.num_games": 64, "agent.play_simulations": 80}
            return {"model.hidden": (256, 128), "trainer.evaluate_every": 20_000, **few}
        if task.removeprefix(PREFIX) != "tic-tac-toe":
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

    @property
    def _least_positions(self) -> int:
        """Positions before the first training: half of those of a replay."""
        return max(1, self.config.minibatches * self.config.minibatch_size // 2)

    def check(self) -> None:
        """Refuse a replay that never holds what the first training waits for; see `Algorithm`."""
        least, capacity = self._least_positions, self.parts.buffer.capacity
        if capacity < least:
            raise ConfigError(
                f"buffer.capacity: expected {least:,} or more, half of trainer.minibatches × "
                f"trainer.minibatch_size, got {capacity}: raise it or lower these"
            )

    def replay(self, seed: int, *, keeps_proportion: bool) -> ReplayConfig:
        """Return the replay's settings: on Ray it has to keep playing and training together."""
        size = self.config.minibatches * self.config.minibatch_size
        samples = self.parts.buffer.samples_per_position
        return ReplayConfig(
            capacity=self.parts.buffer.capacity,
            batch_size=size,
            min_size=self._least_positions,
            seed=seed,
            samples_per_insert=samples if keeps_proportion else None,
            error_margin=4.0 * size if keeps_proportion else None,
        )

    def train(self, run: Run, *, goal: Goal, seed: int = 1) -> Outcome:
        """Play and train; see `Algorithm`."""
        config, parts, task = self.config, self.parts, self.parts.source.environment
        opponent = benchmark_opponent(task)
        game, hidden = opponent.game, parts.model.hidden
        module = network(game, hidden, seed)
        batching = ModelConfig(
            max_batch_size=parts.source.num_games,
            device=playing_device(config, is_local=run.is_local),
        )
        model = run.model("policy", module, game.observation(game.initial(1)), batching)
        replay = self.replay(seed, keeps_proportion=not run.is_local)
        buffer: Any = run.buffer("positions", position_layout(game), replay)
        made = game, hidden, config, seed, model, buffer, run.experiment.checkpoints
        simulations = parts.agent.play_simulations
        evaluation = _Evaluation(opponent, module, model, simulations, goal, seed)
        replays_per_frame = parts.buffer.samples_per_position / replay.batch_size
        clock = ReplayClock(frames_per_replay=1 / replays_per_frame, warmup_frames=replay.min_size)
        outcome = Loop(
            run,
            f"AlphaZero on {task}",
            trainer=run.trainer(
                "alphazero",
                with_schedules(partial(AlphaZeroTrainer, *made), config.learning_rate, clock),
                num_gpus=num_gpus(config),
            ),
            source=run.rollouts(
                "self-play",
                partial(_self_player, game, parts, model, buffer, seed),
                steps=config.moves_per_round,
                num_workers=parts.actor.num_workers,
            ),
            model=model,
            turn=Turn(
                steps=config.moves_per_round,
                replays_per_frame=replays_per_frame,
                warmup_frames=replay.min_size,
            ),
            goal=goal,
            evaluate=evaluation,
            evaluate_every=config.evaluate_every,
            unit="positions",
        ).until_goal()
        measured = AlphaZeroOutcome(**asdict(outcome), measured=evaluation.found)
        return conclude(run.experiment.path, measured)
