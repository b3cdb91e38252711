"""What the recipes that learn from a replay have in common: its settings, the pace, the launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from bray.checks import fraction, positive
from bray.goal import Goal, Outcome
from bray.run import Run
from bray.sources.environments import Spaces, make_environments
from bray.training.evaluation import evaluate_latest
from bray.training.learning import Learning, Pace
from bray_actor import Runner, segment_spec
from bray_buffer import ReplayConfig
from bray_core.errors import ConfigError
from bray_core.layout import Layout
from bray_core.protocols import TrainerProtocol
from bray_model import ModelConfig

_MARGIN = 4
"""Rounds of playing and training that one side may be ahead of the other, on Ray."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OffPolicyConfig:
    """Playing into a replay, training out of it."""

    gamma: float = 0.99
    """Discount per step, 0 to 1."""
    n_step: int = 1
    """Rewards summed before the bootstrap, 1 to 5."""
    batch_size: int = 256
    """Transitions of one step of the optimiser."""
    capacity: int = 100_000
    """Transitions that the replay holds."""
    warmup_frames: int = 1_000
    """In the replay before the first training."""
    num_envs: int = 8
    """Environments side by side, of one worker."""
    num_workers: int = 1
    """That play, on Ray."""
    steps_per_collect: int = 16
    """Steps of all environments between two trainings: also the length of a segment."""
    replays_per_collect: int = 32
    """Optimiser steps after these."""

    def __post_init__(self) -> None:
        positive(
            n_step=self.n_step,
            batch_size=self.batch_size,
            capacity=self.capacity,
            warmup_frames=self.warmup_frames,
            num_envs=self.num_envs,
            num_workers=self.num_workers,
            steps_per_collect=self.steps_per_collect,
            replays_per_collect=self.replays_per_collect,
        )
        fraction(gamma=self.gamma)
        if self.warmup_frames > self.capacity:
            raise ConfigError(
                f"warmup_frames: expected at most the capacity={self.capacity}, "
                f"got {self.warmup_frames}"
            )

    def replay(self, is_local: bool, *, prioritized: bool = False) -> ReplayConfig:
        """Return the replay's settings.

        On Ray it keeps playing and training in their proportion; a local run takes turns.

        Args:
            is_local: of the run.
            prioritized: whether transitions are drawn by their error.
        """
        frames = self.num_envs * self.steps_per_collect
        sampled = self.replays_per_collect * self.batch_size
        return ReplayConfig(
            capacity=self.capacity,
            batch_size=self.batch_size,
            min_size=self.warmup_frames,
            unit="transition",
            n_step=self.n_step,
            gamma=self.gamma,
            sampler="prioritized" if prioritized else "uniform",
            samples_per_insert=None if is_local else sampled / frames,
            error_margin=None if is_local else float(_MARGIN * sampled),
        )

    def pace(self, replay: Any) -> Pace:
        """Return the turns of a local run; what was restored into the replay is not played again.

        Args:
            replay: made by `replay`.
        """
        return Pace(
            steps=self.steps_per_collect,
            replays=self.replays_per_collect,
            warmup_frames=max(0, self.warmup_frames - int(replay.stats()["queued"])),
        )


def learn(
    run: Run,
    title: str,
    spaces: Spaces,
    config: OffPolicyConfig,
    policy: nn.Module,
    make_trainer: Callable[..., TrainerProtocol],
    replay: ReplayConfig,
    *,
    goal: Goal,
    seed: int,
) -> Outcome:
    """Make the components and train until the goal is reached or its frames are used up.

    Args:
        run: of `bray.init`.
        title: shown above the figures.
        spaces: of the environment.
        config: of the recipe.
        policy: the module that acts.
        make_trainer: makes the trainer from the model, the replay and the checkpoints' folder.
        replay: settings of the replay.
        goal: the evaluation's return, and when to give up.
        seed: of environments and draws.
    """
    n = config.num_envs
    model = run.model("policy", policy, spaces.example, ModelConfig(max_batch_size=n, pad_to=(n,)))
    layout = Layout(segment_spec(*spaces.recorded, config.steps_per_collect))
    buffer = run.buffer("replay", layout, replay)
    checkpoints = run.experiment.checkpoints

    def play(worker: int) -> Runner:
        environments = make_environments(spaces.environment, n)
        return Runner(environments, model, buffer, seed=seed + 1000 * worker)

    return Learning(
        run,
        title,
        model=model,
        trainer=run.trainer("trainer", lambda: make_trainer(model, buffer, checkpoints)),
        rollouts=run.rollouts(
            "rollouts", play, steps=config.steps_per_collect, num_workers=config.num_workers
        ),
        pace=config.pace(buffer),
        goal=goal,
        evaluate=partial(
            evaluate_latest, model, policy, spaces.example, spaces.environment, goal, seed=seed
        ),
    ).until_goal()
