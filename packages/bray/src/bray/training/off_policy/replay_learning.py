"""What algorithms share that learn from a replay: settings, turns, the launch.

An algorithm of this family is a config, a trainer, and a subclass of `OffPolicy` that makes its
networks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self, TypeVar

from torch import nn

from bray.policies.config import TrunkConfig
from bray.policies.first_weights import located_weights
from bray.run import Run
from bray.sources import data_sets
from bray.sources.config import GamecoreSourceConfig, ServingActorConfig
from bray.sources.environments import make_environments
from bray.sources.goal_rewards import GoalRewards, check_goals
from bray.sources.hindsight import HindsightBuffer
from bray.sources.replay_beginning import ReplayBeginning
from bray.training.algorithm import Takes, check_processes
from bray.training.device import batch_config
from bray.training.loop import Turn
from bray.training.reward_scale import RewardScaleConfig
from bray.training.sampled_policy import SampledPolicy
from bray.training.schedules.scheduled_trainer import ReplayClock
from bray_actor import Runner, segment_spec
from bray_actor.atari import AtariRewardTransform
from bray_actor.runners.rollouts import AnyRunner
from bray_buffer import BufferConfig, ReplayConfig
from bray_core.action_vector import step_specs
from bray_core.errors import ConfigError
from bray_core.layout import Layout
from bray_core.process.machine import num_cores
from bray_core.settings.ranges import Fraction, NonNegativeInt, PositiveInt, check_fields
from bray_core.spaces import Spaces
from bray_model import ModelConfig
from bray_trainer import Trainer

C = TypeVar("C", bound="OffPolicyConfig")

_MARGIN = 4
"""Rounds of playing and training that one side may be ahead of the other, on Ray."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NStepConfig:
    """How an agent's steps become transitions."""

    n_step: PositiveInt = 1
    """Rewards summed before the bootstrap. More of them carry a reward back faster, and judge old
    actions by what an older policy did after them. 1 to 5."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplaySettings:
    """What a replay holds."""

    capacity: PositiveInt = 100_000
    """Transitions that the replay holds, the newest ones. Too few and what was learnt is forgotten;
    many take memory and hold old play. 10,000 to 1,000,000."""
    warmup_frames: PositiveInt = 1_000
    """Transitions in the replay before the first training. Too few and the first updates fit a
    handful of episodes. 1,000 to 50,000."""
    hindsight: NonNegativeInt = 0
    """Relabelled transitions for each real one, where observations have an `achieved_goal` and a
    `desired_goal`: what was achieved later in the episode, as if it had been the goal
    (Andrychowicz et al. 2017). So episodes that reached nothing teach, too. They count towards the
    capacity. 4 is usual; 0: none."""
    begin_with: str = ""
    """Data set whose steps the replay begins with, such as what an offline trial has learnt from:
    a folder of recorded episodes, `minari:NAME`, or a table. They count as played, and go as newer
    ones come. On Ray a replay whose process was killed begins with them again. Empty: it begins
    empty."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.warmup_frames > self.capacity:
            raise ConfigError(
                f"warmup_frames: expected at most the capacity={self.capacity}, "
                f"got {self.warmup_frames}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class OffPolicyConfig(RewardScaleConfig):
    """Playing into a replay, training out of it; an algorithm adds its own."""

    gamma: Fraction = 0.99
    """Discount per step. A reward t steps away counts γ^t: about 1 / (1 - γ) steps are looked
    ahead. 0.9 where all is decided soon, 0.999 where it takes thousands of steps."""
    batch_size: PositiveInt = 256
    """Transitions of one step of the optimiser. 32 to 1,024."""
    steps_per_collect: PositiveInt = 16
    """Steps of each environment between two trainings: also the length of a segment."""
    replays_per_collect: PositiveInt = 32
    """Optimiser steps after these. More an environment step learn more from it, until the values
    fit the replay and not the task: 0.25 to 1 an environment step, up to 20 with care."""

    def __post_init__(self) -> None:
        check_fields(self)


class OffPolicy(SampledPolicy[C]):
    """An algorithm that learns from a replay of single transitions."""

    pacing = "ratio"
    buffer_name = "replay"
    takes: ClassVar[Takes] = Takes(gamecores=True)
    configs: ClassVar[dict[str, type[Any]]] = {
        "model": TrunkConfig,
        "agent": NStepConfig,
        "buffer": ReplaySettings,
        "source": GamecoreSourceConfig,
        "actor": ServingActorConfig,
    }
    trainer: ClassVar[Callable[..., Trainer]]
    """Called with the spaces, the settings and `seed, model, buffer, directory`."""
    is_prioritized: bool = False
    """Whether transitions are drawn by their error."""

    def trainer_for(self, spaces: Spaces) -> Callable[..., Trainer]:
        """Return what makes the trainer for what the policy may do."""
        return type(self).trainer

    def acting_model(self, model: Any, worker: int) -> Any:
        """Return the model as a worker asks it, who may explore in a way of its own.

        Args:
            model: the policy's model.
            worker: number of the worker, from 0 on.
        """
        return model

    def buffer(self, *, is_local: bool) -> ReplayConfig:
        """Return the replay's settings.

        On Ray it keeps playing and training in their proportion; a local run takes turns.

        Args:
            is_local: whether one process plays and trains.
        """
        source = self.parts.source
        frames = source.num_envs * max(1, source.num_processes) * self.config.steps_per_collect
        frames *= 1 + self.parts.buffer.hindsight
        drawn = self._drawn()
        sampled = self.config.replays_per_collect * drawn["batch_size"]
        return ReplayConfig(
            **drawn,
            capacity=self.parts.buffer.capacity,
            min_size=self.parts.buffer.warmup_frames,
            # Of stacked frames each is stored once.
            frame_stack={"observation": 0} if source.is_atari else {},
            sampler="prioritized" if self.is_prioritized else "uniform",
            samples_per_insert=None if is_local else sampled / frames,
            error_margin=None if is_local else float(_MARGIN * sampled),
        )

    def _drawn(self) -> dict[str, Any]:
        """Return what a batch of the replay is made of: transitions, or segments with a memory."""
        size, length = self.config.batch_size, self.config.steps_per_collect
        if getattr(self.parts.model, "memory_size", 0):  # sequences as long as a segment are these
            size = max(1, size // length)
            return {"unit": "sequence", "sequence_length": length, "batch_size": size}
        n_step, gamma = self.parts.agent.n_step, self.config.gamma
        return {"unit": "transition", "batch_size": size, "n_step": n_step, "gamma": gamma}

    def turn(self, buffer: Any) -> Turn:
        """Return the turns of a local run; what was restored is not played again."""
        turn = Turn(
            steps=self.config.steps_per_collect,
            replays=self.config.replays_per_collect,
            warmup_frames=self.parts.buffer.warmup_frames,
        )
        return turn.after(int(buffer.stats()["queued"]))

    def clock(self, holds: BufferConfig | ReplayConfig, num_ranks: int) -> ReplayClock:
        """Return the recorded steps by the trainer's replays."""
        source = self.parts.source
        frames = source.num_envs * max(1, source.num_processes) * self.config.steps_per_collect
        return ReplayClock(
            frames_per_replay=frames / self.config.replays_per_collect,
            warmup_frames=self.parts.buffer.warmup_frames,
        )

    def check(self) -> None:
        """Refuse processes that the workers cannot share out evenly, and what hindsight cannot."""
        check_processes(self.parts)
        if self.parts.buffer.begin_with and getattr(self.parts.model, "memory_size", 0):
            raise ConfigError(
                "model.memory_size: expected 0 with buffer.begin_with, whose steps have no state "
                f"of a memory, got {self.parts.model.memory_size}"
            )
        if self.parts.buffer.hindsight:
            self._check_hindsight()

    def _check_hindsight(self) -> None:
        """Refuse settings whose transitions cannot be relabelled."""
        source = self.parts.source
        for name, got, wanted, why in (
            ("agent.n_step", self.parts.agent.n_step, 1, "rewards of one step are computed anew"),
            (
                "trainer.normalize_reward",
                self.config.normalize_reward,
                False,
                "relabelled steps have no return that its deviation could be measured by",
            ),
            (
                "source.num_processes",
                source.num_processes,
                0,
                "a simulator over the wire has no compute_reward here",
            ),
            ("source.frame_skip", source.frame_skip, 1, "compute_reward is of one step"),
            (
                "model.memory_size",
                getattr(self.parts.model, "memory_size", 0),
                0,
                "relabelled steps are not in sequence",
            ),
        ):
            if got != wanted:
                raise ConfigError(
                    f"{name}: expected {wanted} with buffer.hindsight, got {got}: {why}: set "
                    f"{name.partition('.')[2]}={wanted}, or hindsight=0"
                )

    def _recording(self, buffer: Any, seed: int) -> Any:
        """Return the buffer as a worker's runner pushes to it, in the worker's process."""
        hindsight = self.parts.buffer.hindsight
        if not hindsight:
            return buffer
        rewards = GoalRewards(self.parts.source.located())
        return HindsightBuffer(buffer, rewards, hindsight, seed)

    @property
    def gamma(self) -> float:
        """Discount per step."""
        return self.config.gamma

    def check_spaces(self, spaces: Spaces) -> None:
        """Refuse also goals that cannot be relabelled, before any worker does."""
        super().check_spaces(spaces)
        if self.parts.buffer.hindsight:
            check_goals(spaces)
            GoalRewards(self.parts.source.located()).close()

    def settled(self, run: Run, spaces: Spaces) -> Self:
        """Return the algorithm with what this machine decides: where its first weights are."""
        made = super().settled(run, spaces)
        return type(self)(located_weights(made.parts))

    def beginning(self, spaces: Spaces) -> ReplayBeginning | None:
        """Return what lets the replay begin with a data set, if the settings name one."""
        where = self.parts.buffer.begin_with
        if not where:
            return None
        found = data_sets.located(where)
        try:  # an absent one is told at once
            data_sets.open_data_set(found, spaces, gamma=1.0)
        except ConfigError as error:
            raise ConfigError(f"buffer.begin_with: {error}") from error
        return ReplayBeginning(found, spaces, self.gamma)

    def layout(self, spaces: Spaces, state_size: int) -> Layout:
        """Return the layout of a segment."""
        return Layout(
            segment_spec(
                *step_specs(spaces),
                self.config.steps_per_collect,
                state_size=state_size,
                discounted=self.config.normalize_reward,
            )
        )

    def trainer_factory(self, spaces: Spaces, module: nn.Module, **parts: Any) -> Any:
        """Return what makes the trainer."""
        made = parts["seed"], parts["model"], parts["buffer"], parts["directory"]
        return partial(self.trainer_for(spaces), spaces, self.parts, *made)

    def batching(self, *, is_local: bool) -> ModelConfig:
        """Return how the rows of a worker's environments are batched."""
        return batch_config(self.config, self.parts.source.num_envs, is_local=is_local)

    def runner(
        self,
        model: Any,
        buffer: Any,
        seed: int,
        worker: int,
        *,
        is_local: bool,
        reset_options: Mapping[str, Any] | None = None,
    ) -> AnyRunner:
        """Make the runner of a worker's environments."""
        source, seed = self.parts.source, seed + 1000 * worker
        return Runner(
            make_environments(source.located(), source.num_envs, num_cores()),
            self.acting_model(model, worker),
            self._recording(buffer, seed),
            seed=seed,
            reward_transform=AtariRewardTransform() if source.is_atari else None,
            gamma=self.gamma,
            info_metrics=source.info_metrics,
            reset_options=reset_options,
        )
