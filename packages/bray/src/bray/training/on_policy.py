"""What on-policy algorithms share: environments play, a queue holds segments, one trainer learns.

An algorithm of this family is a config, a trainer, and a subclass of `OnPolicy` that says how many
steps a replay has and how far play may be ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import nn

from bray.policies.config import NetworkConfig
from bray.policies.flattening import has_images
from bray.policies.networks import make_policy
from bray.run import Run
from bray.sources.config import FrameSourceConfig, ServingActorConfig
from bray.sources.environment_runners import EnvironmentRunners
from bray.sources.wire.gamecore_play import steps_per_turn
from bray.training.algorithm import Takes, check_processes
from bray.training.compute import decided, described
from bray.training.loop import Turn
from bray.training.sampled_policy import SampledPolicy
from bray.training.schedules.scheduled_trainer import ReplayClock
from bray_actor import segment_spec
from bray_actor.runners.rollouts import AnyRunner
from bray_buffer import BufferConfig, ReplayConfig
from bray_core.action_vector import step_specs
from bray_core.errors import ConfigError
from bray_core.layout import Layout
from bray_core.settings.ranges import PositiveInt, check_fields
from bray_core.spaces import Spaces
from bray_model import ModelConfig
from bray_trainer import Trainer

C = TypeVar("C")

_QUEUED_BATCHES = 4
"""Batches of whole segments that the queue of an asynchronous run holds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentConfig:
    """How an agent records its experience."""

    segment_length: PositiveInt = 16
    """Steps T of one segment. A policy with memory learns through so many steps; V-trace and n-step
    returns look so far ahead. Longer ones wait longer for their end. 5 to 256."""

    def __post_init__(self) -> None:
        check_fields(self)


class OnPolicy(SampledPolicy[C]):
    """An algorithm that learns from what its newest policies play, once or a few times."""

    takes: ClassVar[Takes] = Takes(
        actions=("discrete", "multi_discrete", "box", "mixed"), memory=True, gamecores=True
    )
    configs: ClassVar[dict[str, type[Any]]] = {
        "model": NetworkConfig,
        "agent": SegmentConfig,
        "source": FrameSourceConfig,
        "actor": ServingActorConfig,
    }
    trainer: ClassVar[Callable[..., Trainer]]
    """Called with the module, the buffer and `model=, part=, seed=, directory=`."""

    @property
    def batch_steps(self) -> int:
        """Environment steps of a replay: those that a worker's environments take for a segment, or
        those of all gamecores."""
        source = self.parts.source
        num_envs = int(source.num_envs) * max(1, int(source.num_processes))
        return int(self.parts.agent.segment_length) * num_envs

    @property
    def replays_per_collect(self) -> int:
        """Replays that a local run plays one after the other before it trains on them: the last of
        them was played by a policy that is so many versions old, less one, when its turn comes."""
        return 1

    @property
    def max_policy_lag(self) -> int | None:
        """Versions, above which segments are dropped; None: on Ray the players wait for each."""
        return None

    def check(self) -> None:
        """Refuse a bound of the lag that a local run would not keep, and lanes that do not fit.

        Raises:
            ConfigError: begins with the dotted name of a setting.
        """
        replays, lag = self.replays_per_collect, self.max_policy_lag
        if replays > 1 + (lag or 0):
            raise ConfigError(
                f"trainer.max_policy_lag: expected {replays - 1} or more for "
                f"replays_per_collect={replays}, got {lag}"
            )
        if self.num_ranks > 1 and getattr(self.config, "curiosity", False):
            raise ConfigError(
                f"trainer.curiosity: expected 0 for several ranks, each of which would have a "
                f"curiosity of its own, got trainer.num_ranks={self.num_ranks}"
            )
        check_processes(self.parts)
        processes = self.parts.source.num_processes
        lanes = processes * self.parts.source.num_envs
        if lanes and self.batch_steps % lanes:
            raise ConfigError(
                f"trainer.steps_per_replay: expected a multiple of the {lanes} environments "
                f"(source.num_processes × source.num_envs), got {self.batch_steps}"
            )

    def policy(self, spaces: Spaces, seed: int) -> nn.Module:
        """Return the policy to begin with: one that knows nothing, the same for the same seed."""
        return make_policy(spaces, self.parts.model, seed)

    def layout(self, spaces: Spaces, state_size: int) -> Layout:
        """Return the layout of a segment."""
        return segment_layout(
            spaces,
            self.parts.agent.segment_length,
            state_size,
            stack=self.parts.source.is_atari,
            discounted=getattr(self.config, "normalize_reward", False),
        )

    def trainer_factory(self, spaces: Spaces, module: nn.Module, **parts: Any) -> Any:
        """Return what makes the trainer."""
        buffer = parts.pop("buffer")
        return partial(self.make_trainer(spaces, **parts), module, buffer)

    def make_trainer(self, spaces: Spaces, **parts: Any) -> Any:
        """Return the trainer's factory but for its arguments `module, buffer`; pickled on Ray."""
        if getattr(self.config, "curiosity", False):
            parts["spaces"] = spaces
        return partial(self.trainer, part=self.config, **parts)

    @property
    def steps_per_version(self) -> int | None:
        """Steps of a replay, where the players wait for each version."""
        return self.batch_steps if self.max_policy_lag is None else None

    def settled(self, run: Run, spaces: Spaces) -> Self:
        """Return the algorithm with threads and workers decided."""
        settled = super().settled(run, spaces)
        parts = decided(
            settled.parts,
            is_image=has_images(spaces),
            is_local=run.is_local,
            num_ranks=1 if run.is_local else self.num_ranks,
        )
        if run.is_local:
            torch.set_num_threads(parts.trainer.trainer_threads)
        return type(self)(parts)

    def described(self, run: Run, spaces: Spaces) -> str:
        """Return what plays and trains in words, where frames are played."""
        if not has_images(spaces):
            return ""
        num_ranks = 1 if run.is_local else self.num_ranks
        return f"\n{described(self.parts, is_local=run.is_local, num_ranks=num_ranks)}"

    def turn(self, buffer: Any) -> Turn:
        """Return the turns of a local run: a replay is played, then trained on."""
        source, number = self.parts.source, self.replays_per_collect
        if source.num_processes:
            steps = steps_per_turn(self.batch_steps, source.num_processes * source.num_envs)
        else:
            num_workers = self.parts.actor.num_workers if self.max_policy_lag is None else 1
            steps = steps_per_collect(self.batch_steps, source.num_envs, num_workers)
        return Turn(steps=steps, collects=number, replays=number)

    def clock(self, holds: BufferConfig | ReplayConfig, num_ranks: int) -> ReplayClock:
        """Return the recorded steps by the trainer's replays, of which each rank has its own."""
        assert isinstance(holds, BufferConfig), "an on-policy algorithm has a queue"
        of_segments = (holds.batch_size or 0) * int(self.parts.agent.segment_length)
        return ReplayClock(frames_per_replay=(holds.batch_steps or of_segments) * num_ranks)

    def _runners(
        self, *, is_local: bool, reset_options: Mapping[str, Any] | None = None
    ) -> EnvironmentRunners:
        return EnvironmentRunners(
            self.parts.source,
            self.parts.trainer,
            is_local=is_local,
            gamma=self.gamma,
            reset_options=reset_options,
        )

    def batching(self, *, is_local: bool) -> ModelConfig:
        """Return how the rows of a worker's environments are batched."""
        return self._runners(is_local=is_local).model_config()

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
        runners = self._runners(is_local=is_local, reset_options=reset_options)
        return runners.runner(model, buffer, seed + 1000 * worker)

    def buffer(self, *, is_local: bool) -> BufferConfig:
        """Return the queue's settings."""
        return self._queue(must_hold_all=is_local or self.max_policy_lag is None)

    def _queue(self, *, must_hold_all: bool) -> BufferConfig:
        """Return the queue's settings.

        Where nothing is popped while it is filled it must hold all, be each segment one step; an
        asynchronous one holds little, because what waits there grows old.
        """
        segments = -(-self.batch_steps // self.parts.agent.segment_length)
        all_steps = self.batch_steps * self.replays_per_collect
        return BufferConfig(
            batch_steps=self.batch_steps,
            capacity=all_steps if must_hold_all else _QUEUED_BATCHES * segments,
            when_full="block",
            max_policy_lag=self.max_policy_lag,
        )


def steps_per_collect(batch_steps: int, num_envs: int, num_workers: int) -> int:
    """Return the steps that each environment takes for a replay.

    Args:
        batch_steps: environment steps of the replay.
        num_envs: environments of a worker.
        num_workers: workers that share it.

    Raises:
        ConfigError: the replay cannot be shared out evenly.
    """
    share = num_envs * num_workers
    if batch_steps % share:
        raise ConfigError(
            f"num_envs: expected num_envs × num_workers to divide the {batch_steps} steps of a "
            f"replay, got {num_envs} × {num_workers}"
        )
    return batch_steps // share


def segment_layout(
    spaces: Spaces,
    length: int,
    state_size: int,
    *,
    stack: bool = False,
    discounted: bool = False,
) -> Layout:
    """Return the layout of a policy's segments of T steps.

    Args:
        spaces: what the environment shows and takes.
        length: steps T of a segment.
        state_size: numbers S of a recurrent policy's state; 0 is no memory.
        stack: whether an observation is a stack of frames, of which each is then stored once.
        discounted: whether each step has the discounted sum of the rewards up to it.
    """
    step = step_specs(spaces)
    spec = segment_spec(*step, length, state_size=state_size, stack=stack, discounted=discounted)
    return Layout(spec)
