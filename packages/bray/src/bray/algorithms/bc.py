"""Behaviour cloning: recorded episodes → log likelihood of what was done → a policy.

Pomerleau 1989, "ALVINN: an autonomous land vehicle in a neural network". Nothing is played but the
evaluations. Where demonstrations come from: `bray.sources.demonstrations`, and
`bray/templates/demonstrate.py` makes some.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from bray.goal import Goal, Outcome, conclude
from bray.policies.config import NetworkConfig
from bray.policies.networks import example_inputs, make_policy
from bray.run import Run
from bray.sources import demonstrations
from bray.sources.environments import read_spaces
from bray.sources.source import Played
from bray.training.algorithm import Algorithm, NoSettings, Parts, Takes
from bray.training.combination import check_combination
from bray.training.deploy import keep_spaces
from bray.training.evaluation import evaluate_latest
from bray.training.loop import Loop, Turn
from bray.training.normalisation import NormalisingTrainer
from bray.training.schedules.scheduled_trainer import ReplayClock, with_schedules
from bray_actor.environments.spec import EnvironmentSpec
from bray_algo.distributions import outputs as distribution
from bray_algo.losses import cloning, ppo
from bray_core.errors import ConfigError
from bray_core.layout import Packed
from bray_core.protocols import ModelProtocol, TrainerProtocol
from bray_core.settings.ranges import (
    Fraction,
    NonNegativeFloat,
    PositiveInt,
    check_fields,
)
from bray_core.settings.schedule import ScheduledPositiveFloat, value_at
from bray_core.spaces import Spaces
from bray_trainer import TrainerConfig, to_torch


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedSourceConfig(EnvironmentSpec):
    """Recorded episodes, and where they were played."""

    demonstrations: str = "demonstrations"
    """Folder of recorded episodes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BCConfig:
    """The hyperparameters of behaviour cloning."""

    learning_rate: ScheduledPositiveFloat = 1e-3
    """Adam's step size. 1e-4 to 3e-3."""
    batch_size: PositiveInt = 256
    """Demonstrated steps of one step of the optimiser. 32 to 4,096."""
    gamma: Fraction = 0.99
    """Discount per step of the returns that the value is regressed to."""
    value_coefficient: NonNegativeFloat = 0.5
    """Weight of the value's loss: reinforcement learning can go on from there. 0 leaves it out."""
    evaluate_every: PositiveInt = 200
    """Optimiser steps between two evaluations."""
    max_steps: PositiveInt = 2_000
    """Optimiser steps after which training gives up. With too many a small data set is learnt by
    heart, and the policy fails where nobody has been."""

    def __post_init__(self) -> None:
        check_fields(self)


class CloningTrainer(NormalisingTrainer):
    """One batch of demonstrated steps is one step; it pauses before each evaluation."""

    def __init__(
        self,
        module: nn.Module,
        spaces: Spaces,
        folder: str,
        config: BCConfig,
        seed: int,
        model: ModelProtocol | None = None,
        directory: Path | None = None,
    ) -> None:
        self.settings = config
        source = demonstrations.source(
            folder,
            spaces,
            gamma=config.gamma,
            batch_size=config.batch_size,
            seed=seed,
        )
        trainer = TrainerConfig(
            learning_rate=value_at(config.learning_rate, 0),
            publish_every=config.evaluate_every,
            checkpoint_every=config.evaluate_every,
            seed=seed,
        )
        super().__init__(module, source, model=model, config=trainer, directory=directory)

    def handle(self, replay: Packed) -> Iterator[dict[str, Any]]:
        """Yield the batch."""
        batch = to_torch(replay, self.device)
        self.see(batch)
        yield batch

    def loss(self, batch: dict[str, Any], step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return −log π of what was done, with the error of the value where it is known."""
        outputs = self.module(batch["observation"])
        loss, terms = cloning.likelihood_loss(distribution.log_prob(outputs, batch["action"]))
        known = ~batch["return"].isnan()
        error = ppo.value_error(outputs["value"], batch["return"], valid=known)
        return loss + self.settings.value_coefficient * error, {**terms, "value_loss": error}

    def should_pause(self) -> bool:
        """Return whether the driver should evaluate now."""
        return self.steps % self.settings.evaluate_every == 0


class BC(Algorithm[BCConfig]):
    """A policy that does what recorded episodes did; nothing is played but the evaluations."""

    title = "behaviour cloning"
    pacing = "offline"
    takes = Takes(actions=("discrete", "multi_discrete", "box", "mixed"), demonstrations=True)
    short_run = ("trainer.max_steps=20", "trainer.evaluate_every=20")
    configs: ClassVar[dict[str, type[Any]]] = {
        "model": NetworkConfig,
        "source": RecordedSourceConfig,
        "actor": NoSettings,
        "trainer": BCConfig,
    }

    def check(self) -> None:
        """Refuse a policy with memory: demonstrated steps are not in sequence."""
        check_no_memory(self.parts)

    def train(self, run: Run, *, goal: Goal, seed: int = 1) -> Outcome:
        """Clone until an evaluation reaches the goal or the steps are used up; see `Algorithm`.

        The goal's frames count nothing here.
        """
        config, task = self.config, self.parts.source
        folder = str(Path(self.parts.source.demonstrations).resolve())
        demonstrated = demonstrations.mean_return(folder)
        spaces = read_spaces(task)
        check_combination(self, spaces)
        keep_spaces(run, spaces)
        module = make_policy(spaces, self.parts.model, seed)
        example = example_inputs(spaces, 0)
        model = run.model("policy", module, example)
        checkpoints = run.experiment.checkpoints
        make = partial(CloningTrainer, module, spaces, folder, config, seed, model, checkpoints)
        clock = ReplayClock(frames_per_replay=1)
        trainer = run.trainer("cloning", with_schedules(make, config.learning_rate, clock))
        outcome = Loop(
            run,
            f"behaviour cloning on {task}: demonstrated {demonstrated:.1f}",
            trainer=trainer,
            source=OptimiserSteps(trainer),
            model=model,
            turn=Turn(steps=0, collects=0, replays=config.evaluate_every),
            goal=replace(goal, max_frames=config.max_steps),
            evaluate=partial(evaluate_latest, model, module, spaces, task, goal, seed=seed),
            evaluate_every=config.evaluate_every,
            unit="optimiser steps",
        ).until_goal()
        return conclude(run.experiment.path, replace(outcome, frames=0, frames_per_s=0.0))


def check_no_memory(parts: Parts) -> None:
    """Refuse a policy with memory where steps are not in sequence.

    Raises:
        ConfigError: names the setting.
    """
    if parts.model.memory_size:
        raise ConfigError(
            "model.memory_size: expected 0, demonstrated steps are not in sequence, got "
            f"{parts.model.memory_size}"
        )


class OptimiserSteps:
    """Source of a run that plays nothing: its trainer's steps stand in for frames.

    Args:
        trainer: what takes the steps.
    """

    def __init__(self, trainer: TrainerProtocol) -> None:
        self._trainer = trainer
        self._before: int | None = None

    def collect(self, steps: int) -> None:
        """Do nothing: the data is there."""

    def poll(self) -> Played:
        """Return the steps since the last call; the first one begins to count."""
        steps = int(self._trainer.progress()["steps"])
        before, self._before = self._before, steps
        return Played(0 if before is None else steps - before, [])

    def close(self) -> None:
        """Do nothing."""
