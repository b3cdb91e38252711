"""Algorithms that learn from what players of their policy record, whoever lets them play.

    players ──segments──► buffer ──► trainer ──versions──► model ──actions──► players

Such an algorithm says what is recorded, what holds it and what trains on it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Self, TypeVar

from torch import nn

from bray.policies.networks import example_inputs
from bray.run import Run
from bray.training.algorithm import Algorithm
from bray.training.device import num_gpus
from bray.training.learner import Learner, LearnerPlace, labelled
from bray.training.loop import Turn
from bray.training.off_policy.mixed_replays import check_priorities, mixed_replays
from bray.training.policy_model import policy_model
from bray.training.schedules.scheduled_trainer import ReplayClock, with_schedules
from bray_actor import PolicyConfig
from bray_buffer import BufferConfig, ReplayConfig
from bray_core.layout import Layout
from bray_core.spaces import Spaces

C = TypeVar("C")


class RecordedPolicy(Algorithm[C]):
    """An algorithm that learns from what is recorded of its policy's play.

    Sources of named parts play for it, beside other policies.
    """

    buffer_name: ClassVar[str] = "experience"
    """Name of the buffer in the trial."""

    # What a family of algorithms says.

    @abstractmethod
    def policy(self, spaces: Spaces, seed: int) -> nn.Module:
        """Return the policy to begin with: one that knows nothing, the same for the same seed."""

    @abstractmethod
    def layout(self, spaces: Spaces, state_size: int) -> Layout:
        """Return the layout of a segment.

        Args:
            spaces: what the policy sees and may do.
            state_size: numbers of a recurrent policy's state; 0 is no memory.
        """

    @abstractmethod
    def buffer(self, *, is_local: bool) -> BufferConfig | ReplayConfig:
        """Return the settings of what holds the segments.

        Args:
            is_local: whether one process plays and trains.
        """

    @abstractmethod
    def trainer_factory(self, spaces: Spaces, module: nn.Module, **parts: Any) -> Any:
        """Return what makes the trainer, without arguments; it is pickled on Ray.

        Args:
            spaces: what the policy sees and may do.
            module: the policy to begin with.
            **parts: `model`, `buffer`, `directory` of the checkpoints, and `seed`.
        """

    @abstractmethod
    def turn(self, buffer: Any) -> Turn:
        """Return the order of playing and training in a local run.

        Args:
            buffer: the buffer of the run; what was restored into a replay is not played again.
        """

    @abstractmethod
    def clock(self, holds: BufferConfig | ReplayConfig, num_ranks: int) -> ReplayClock:
        """Return the recorded steps by the trainer's replays, for settings that are schedules.

        Args:
            holds: settings of the buffer of the run, one rank's.
            num_ranks: processes that train at once, each on a replay of its own.
        """

    @abstractmethod
    def check_spaces(self, spaces: Spaces) -> None:
        """Refuse spaces that the algorithm or its settings cannot take.

        Raises:
            ConfigError: says why, and what to do instead.
        """

    def beginning(self, spaces: Spaces) -> Callable[[Any], Any] | None:
        """Return what fills a replay that is empty, in its process; None: it begins empty.

        Args:
            spaces: what the policy sees and may do.
        """
        return None

    @property
    def steps_per_version(self) -> int | None:
        """Steps of all that play, after which the next version is waited for; None: no wait."""
        return None

    @property
    def gamma(self) -> float:
        """Discount per step, of what normalises rewards."""
        return float(getattr(self.config, "gamma", 0.99))

    @property
    def num_ranks(self) -> int:
        """Processes that train at once on Ray, each on a replay of its own."""
        return 1

    def settled(self, run: Run, spaces: Spaces) -> Self:
        """Return the algorithm with what this machine and runtime decide: a local run plays with
        one worker."""
        if not run.is_local:
            return self
        return type(self)(replace(self.parts, actor=replace(self.parts.actor, num_workers=1)))

    # What follows from it.

    def acting(self, spaces: Spaces, state_size: int, seed: int) -> PolicyConfig:
        """Return how the policy acts while it is trained."""
        return PolicyConfig(
            seed=seed,
            state_size=state_size,
            clip_reward=self.parts.source.is_atari,
            spaces=spaces.described(),
            gamma=self.gamma,
        )

    def learner(self, run: Run, spaces: Spaces, place: LearnerPlace) -> Learner:
        """Make what trains the policy, but for the trainer itself.

        Args:
            run: makes the components.
            spaces: what the policy sees and may do, checked.
            place: names of the components, and the rows that are asked at once.
        """
        module = self.policy(spaces, place.seed)
        state_size = int(getattr(module, "state_size", 0))
        example = example_inputs(spaces, state_size)
        num_ranks = 1 if run.is_local else self.num_ranks
        model = policy_model(
            run, module, example, place.batching, self.parts.actor, name=place.model
        )
        holds = place.holds or self.buffer(is_local=run.is_local)
        layout = self.layout(spaces, state_size)
        replays: Mapping[str, Any] = {}
        buffer: Any
        min_size = 0
        if place.mixture:
            found = mixed_replays(run, self, spaces, layout, place)
            replays, buffer, min_size = found.replays, found.mixture, found.min_size
        else:
            if isinstance(place.holds, ReplayConfig):
                where = f"trainers.{place.label}.inputs.experience"
                check_priorities(self, where, place.holds.sampler)
            beginning = self.beginning(spaces)
            buffer = run.buffer(place.buffer, layout, holds, num_workers=num_ranks, begin=beginning)
        make = with_schedules(
            self.trainer_factory(
                spaces,
                module,
                model=model,
                buffer=buffer,
                directory=place.checkpoints,
                seed=place.seed,
            ),
            getattr(self.config, "learning_rate", 0.0),
            self.clock(holds, num_ranks),
        )
        if place.label is not None and not run.is_local:
            make = partial(labelled, make, place.label)
        make_trainer = partial(
            run.trainer,
            place.trainer,
            make,
            num_workers=num_ranks,
            num_gpus=num_gpus(self.config),
        )
        return Learner(
            spaces=spaces,
            module=module,
            example=example,
            model=model,
            buffer=buffer,
            replays=replays,
            min_size=min_size,
            make_trainer=make_trainer,
            policy=self.acting(spaces, state_size, place.seed),
            turn=self.turn(next(iter(replays.values()), buffer)),
            batch_steps=holds.batch_steps if isinstance(holds, BufferConfig) else None,
            steps_per_version=self.steps_per_version,
        )

    def holding(self, buffer: Any) -> Self:
        """Return the algorithm with other settings of its buffer."""
        return type(self)(replace(self.parts, buffer=buffer))
