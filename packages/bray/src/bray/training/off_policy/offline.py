"""What algorithms share that learn from data sets alone: settings, and a run that plays nothing.

An algorithm of this family is a config, a trainer, and a subclass of `Offline` that makes both.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

from torch import nn

from bray.goal import Goal, Outcome, conclude
from bray.policies.config import TrunkConfig
from bray.policies.first_weights import located_weights
from bray.policies.networks import example_inputs
from bray.run import Run
from bray.sources import data_sets
from bray.sources.environments import read_spaces
from bray.sources.source import Played
from bray.training.algorithm import Algorithm, NoSettings, Parts, Takes
from bray.training.combination import check_combination
from bray.training.deploy import keep_spaces
from bray.training.device import DeviceConfig, num_gpus
from bray.training.evaluation import evaluate_latest
from bray.training.learner import Learner, LearnerPlace, labelled
from bray.training.loop import Loop, Turn
from bray.training.schedules.scheduled_trainer import ReplayClock, with_schedules
from bray_actor import PolicyConfig
from bray_actor.environments.spec import EnvironmentSpec
from bray_core.errors import ConfigError
from bray_core.protocols import ModelProtocol, TrainerProtocol
from bray_core.settings.ranges import Fraction, PositiveInt, Range, check_fields
from bray_core.settings.schedule import ScheduledPositiveFloat
from bray_core.spaces import Spaces
from bray_trainer import Trainer

DataSets = str | Mapping[str, float]
"""A data set, or several with their shares of the batches."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedSourceConfig(EnvironmentSpec):
    """A data set, and where it was played, which is what evaluations play."""

    demonstrations: str = "demonstrations"
    """Data set: a folder of recorded episodes, `minari:NAME`, or a `.parquet` or `.arrow` file or a
    folder of such."""
    mixture: Mapping[str, float] = field(default_factory=dict)
    """Several data sets in the place of `demonstrations`, each with its share of the batches, such
    as `{expert: 0.7, play: 0.3}`: so that few good episodes are not lost among many poor ones."""

    def __post_init__(self) -> None:
        EnvironmentSpec.__post_init__(self)
        data_sets.check_shares(self.mixture)

    def with_absolute_paths(self) -> Self:
        """Return it with data sets that workers in other folders find, too."""
        shares = {data_sets.located(name): share for name, share in self.mixture.items()}
        demonstrations = data_sets.located(self.demonstrations)
        return replace(self, demonstrations=demonstrations, mixture=shares)

    @property
    def where(self) -> DataSets:
        """The data sets, as a worker finds them."""
        return data_sets.all_located(self.mixture or self.demonstrations)


@dataclass(frozen=True, kw_only=True, slots=True)
class OfflineConfig(DeviceConfig):
    """What every offline algorithm can be told; each adds its own."""

    learning_rate: ScheduledPositiveFloat = 3e-4
    """Adam's step size, for all that is trained. Too large and the values run away; too small and
    they creep. 1e-4 to 1e-3."""
    batch_size: PositiveInt = 256
    """Recorded steps of one step of the optimiser. 32 to 4,096."""
    gamma: Fraction = 0.99
    """Discount per step. A reward t steps away counts γ^t: about 1 / (1 - γ) steps are looked
    ahead."""
    tau: Annotated[float, Range(above=0, maximum=1)] = 0.005
    """How far the target networks follow at each step, 0 to 1. Too fast and the target chases the
    network; too slow and learning waits for it. 0.001 to 0.02."""
    evaluate_every: PositiveInt = 1_000
    """Optimiser steps between two evaluations."""
    max_steps: PositiveInt = 20_000
    """Optimiser steps after which training gives up. 10,000 to 1,000,000: values need more than
    cloning does."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def replays_per_collect(self) -> int:
        """Optimiser steps between two versions of the policy: those between two evaluations."""
        return self.evaluate_every

    @property
    def normalize_reward(self) -> bool:
        """Whether rewards are divided by their deviation: never, the data set stands still."""
        return False


C = TypeVar("C")


class Offline(Algorithm[C]):
    """An algorithm that learns from data sets; nothing is played but the evaluations."""

    pacing = "offline"
    takes: ClassVar[Takes] = Takes(demonstrations=True)
    short_run = ("trainer.max_steps=20", "trainer.evaluate_every=20")
    configs: ClassVar[dict[str, type[Any]]] = {
        "model": TrunkConfig,
        "source": RecordedSourceConfig,
        "actor": NoSettings,
        "trainer": OfflineConfig,
    }

    @abstractmethod
    def policy(self, spaces: Spaces, seed: int) -> nn.Module:
        """Return the module that acts, the same for the same seed."""

    @abstractmethod
    def make_trainer(
        self, spaces: Spaces, seed: int, policy: nn.Module, model: ModelProtocol, directory: Path
    ) -> Callable[[], Trainer]:
        """Return the trainer's factory, which is pickled on Ray.

        Args:
            spaces: what the policy sees and may do.
            seed: seed of the run.
            policy: what `policy` returned.
            model: what the policy is published to.
            directory: folder of the checkpoints.
        """

    @property
    def where(self) -> DataSets:
        """The data sets, as a worker finds them.

        Raises:
            ConfigError: neither the source nor an input of named parts names one.
        """
        return data_sets_of(self.parts)

    def check_spaces(self, spaces: Spaces) -> None:
        """Refuse spaces that the algorithm cannot take.

        Raises:
            ConfigError: says why, and what to do instead.
        """
        check_combination(self, spaces)

    def settled(self, run: Run, spaces: Spaces) -> Self:
        """Return the algorithm with what this machine decides: where its first weights are."""
        return type(self)(located_weights(self.parts))

    def learner(self, run: Run, spaces: Spaces, place: LearnerPlace) -> Learner:
        """Make what trains the policy beside others: it plays with them, and records nothing.

        Args:
            run: makes the components.
            spaces: what the policy sees and may do, checked.
            place: names of the components, and the rows that are asked at once.
        """
        config: Any = self.config
        policy = self.policy(spaces, place.seed)
        example = example_inputs(spaces, 0)
        model = run.model(place.model, policy, example, place.batching)
        make = self.make_trainer(spaces, place.seed, policy, model, place.checkpoints)
        made = with_schedules(make, config.learning_rate, ReplayClock(frames_per_replay=1))
        if place.label is not None and not run.is_local:
            made = partial(labelled, made, place.label)
        return Learner(
            spaces=spaces,
            module=policy,
            example=example,
            model=model,
            buffer=None,
            replays={},
            min_size=0,
            make_trainer=partial(run.trainer, place.trainer, made, num_gpus=num_gpus(config)),
            policy=PolicyConfig(seed=place.seed, spaces=spaces.described(), gamma=config.gamma),
            turn=Turn(steps=0, collects=0, replays=config.evaluate_every),
            batch_steps=None,
            steps_per_version=None,
            max_replays=config.max_steps,
        )

    def train(self, run: Run, *, goal: Goal, seed: int = 1) -> Outcome:
        """Learn until an evaluation reaches the goal or the steps are used up; see `Algorithm`.

        The goal's frames count nothing here.
        """
        parts = located_weights(self.parts)
        self.parts = replace(parts, source=parts.source.with_absolute_paths())
        config: Any = self.config
        task = self.parts.source
        spaces = read_spaces(task)
        check_combination(self, spaces)
        where = task.where
        recorded = data_sets.mean_return([where] if isinstance(where, str) else [*where], spaces)
        keep_spaces(run, spaces)
        policy = self.policy(spaces, seed)
        model = run.model("policy", policy, example_inputs(spaces, 0))
        make = self.make_trainer(spaces, seed, policy, model, run.experiment.checkpoints)
        clock = ReplayClock(frames_per_replay=1)  # there are no frames but the optimiser's steps
        made = with_schedules(make, config.learning_rate, clock)
        trainer = run.trainer("trainer", made, num_gpus=num_gpus(config))
        known = "" if math.isnan(recorded) else f": recorded {recorded:.1f}"
        outcome = Loop(
            run,
            f"{self.title} on {task}{known}",
            trainer=trainer,
            source=OptimiserSteps(trainer),
            model=model,
            turn=Turn(steps=0, collects=0, replays=min(config.evaluate_every, config.max_steps)),
            goal=replace(goal, max_frames=config.max_steps),
            evaluate=partial(evaluate_latest, model, policy, spaces, task, goal, seed=seed),
            evaluate_every=config.evaluate_every,
            unit="optimiser steps",
        ).until_goal()
        return conclude(run.experiment.path, replace(outcome, frames=0, frames_per_s=0.0))


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


def data_sets_of(parts: Parts) -> DataSets:
    """Return the data sets of an algorithm that imitates, as a worker finds them.

    Args:
        parts: settings of the run.

    Raises:
        ConfigError: neither the source nor an input of named parts names one.
    """
    return data_sets.all_located(named_data_sets(parts))


def named_data_sets(parts: Parts) -> DataSets:
    """Return the data sets of an algorithm that imitates, as they are named; nothing is looked for.

    Args:
        parts: settings of the run.

    Raises:
        ConfigError: neither the source nor an input of named parts names one.
    """
    if parts.demonstrations:
        return parts.demonstrations
    told = getattr(parts.source, "mixture", None) or getattr(parts.source, "demonstrations", None)
    if told is None:
        raise ConfigError(
            "trainer.inputs: expected the buffer of a data set, {demonstrations: expert}, in a "
            "source that names none, got none"
        )
    found: DataSets = told
    return found
