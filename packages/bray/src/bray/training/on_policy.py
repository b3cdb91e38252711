"""What on-policy algorithms share: environments play, a queue holds segments, one trainer learns.

An algorithm of this family is a config, a trainer, and a subclass of `OnPolicy` that says how many
steps a replay has and how far play may be ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, TypeVar

import torch

from bray.goal import Goal, Outcome
from bray.policies.config import NetworkConfig
from bray.policies.flattening import has_images
from bray.policies.networks import AnyPolicy, example_inputs, make_policy
from bray.run import Run
from bray.sources.config import FrameSourceConfig, ServingActorConfig
from bray.sources.environment_runners import EnvironmentRunners
from bray.sources.environments import read_spaces
from bray.sources.gamecores import GamecorePlay, gamecores, steps_per_turn
from bray.sources.simulator_spaces import simulator_spaces
from bray.training.algorithm import Algorithm, Takes, check_processes
from bray.training.combination import check_combination
from bray.training.compute import decided, described
from bray.training.deploy import keep_spaces
from bray.training.evaluation import evaluate_latest, evaluate_simulators
from bray.training.loop import Loop, Turn
from bray.training.policy_model import policy_model
from bray.training.schedules.run_curriculum import RunCurriculum
from bray.training.schedules.scheduled_trainer import ReplayClock, with_schedules
from bray_actor import PolicyConfig, segment_spec
from bray_buffer import BufferConfig
from bray_core.action_vector import step_specs
from bray_core.errors import ConfigError
from bray_core.layout import Layout
from bray_core.settings.ranges import PositiveInt, check_fields
from bray_core.spaces import Spaces
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


class OnPolicy(Algorithm[C]):
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

    @property
    def gamma(self) -> float:
        """Discount per step, of what normalises rewards."""
        return float(getattr(self.config, "gamma", 0.99))

    @property
    def num_ranks(self) -> int:
        """Processes that train at once on Ray, each on a replay of its own."""
        return 1

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

    def first_policy(self, spaces: Spaces, seed: int) -> AnyPolicy:
        """Return the policy to begin with: one that knows nothing, the same for the same seed."""
        return make_policy(spaces, self.parts.model, seed)

    def make_trainer(self, spaces: Spaces, **parts: Any) -> Any:
        """Return the trainer's factory but for its arguments `module, buffer`; pickled on Ray."""
        if getattr(self.config, "curiosity", False):
            parts["spaces"] = spaces
        return partial(self.trainer, part=self.config, **parts)

    def train(self, run: Run, *, goal: Goal, seed: int = 1) -> Outcome:
        """Play, queue the segments, train on them until the goal is reached; see `Algorithm`."""
        environment = self.parts.source
        title = f"{self.title} on {self.parts.source.title}"
        told = simulator_spaces(run, self.parts.source, self.parts.actor)
        spaces = read_spaces(environment) if told is None else told
        check_combination(self, spaces)
        keep_spaces(run, spaces)
        num_ranks = 1 if run.is_local else self.num_ranks
        is_image = has_images(spaces)
        parts = decided(self.parts, is_image=is_image, is_local=run.is_local, num_ranks=num_ranks)
        if is_image:
            title = f"{title}\n{described(parts, is_local=run.is_local, num_ranks=num_ranks)}"
        if run.is_local:
            torch.set_num_threads(parts.trainer.trainer_threads)
            parts = replace(parts, actor=replace(parts.actor, num_workers=1))
        this = type(self)(parts)
        module = this.first_policy(spaces, seed)
        example = example_inputs(spaces, module.state_size)
        curriculum = RunCurriculum(run, parts.source.curriculum)
        runners = EnvironmentRunners(
            parts.source,
            parts.trainer,
            is_local=run.is_local,
            gamma=self.gamma,
            reset_options=curriculum.first,
        )
        batching, play = runners.model_config(), None
        if parts.source.num_processes:
            title = f"{title}, gamecores over the wire"
            play = replace(
                this._gamecore_play(spaces, module.state_size, seed),
                spaces=told,
                reset_options=curriculum.first,
            )
            batching = replace(batching, max_batch_size=len(play.lanes()), pad_to=())
        model = policy_model(run, module, example, batching, parts.actor)
        is_lockstep = self.max_policy_lag is None
        num_workers = parts.actor.num_workers
        length = parts.agent.segment_length
        buffer = run.buffer(
            "experience",
            segment_layout(
                spaces,
                length,
                module.state_size,
                stack=parts.source.is_atari,
                discounted=getattr(parts.trainer, "normalize_reward", False),
            ),
            this._queue(must_hold_all=run.is_local or is_lockstep),
            num_workers=num_ranks,
        )
        evaluate: Callable[[], Sequence[float] | None] = partial(
            evaluate_latest, model, module, spaces, environment, goal, seed=seed
        )
        source: Any
        if play is not None:
            steps = steps_per_turn(this.batch_steps, play.num_lanes)
            source = simulators = gamecores(run, play, model, buffer)
            title = "\n".join([title, *simulators.lines()])
            if told is not None:
                evaluate = partial(
                    evaluate_simulators, source, model, module, example, goal, seed=seed
                )
        else:
            steps = steps_per_collect(
                this.batch_steps, parts.source.num_envs, num_workers if is_lockstep else 1
            )
            source = run.rollouts(
                "rollouts",
                lambda worker: runners.runner(model, buffer, seed + 1000 * worker),
                steps=steps,
                lockstep=is_lockstep,
                num_workers=num_workers,
            )
        curriculum.follow(source)
        make = with_schedules(
            this.make_trainer(spaces, model=model, directory=run.experiment.checkpoints, seed=seed),
            getattr(parts.trainer, "learning_rate", 0.0),
            ReplayClock(frames_per_replay=this.batch_steps * num_ranks),
        )
        return Loop(
            run,
            title,
            model=model,
            trainer=run.trainer(
                "trainer",
                partial(make, module, buffer),
                num_workers=num_ranks,
                num_gpus=1.0 if parts.trainer.device == "cuda" else 0.0,
            ),
            source=source,
            turn=Turn(
                steps=steps, collects=self.replays_per_collect, replays=self.replays_per_collect
            ),
            goal=goal,
            evaluate=evaluate,
        ).until_goal()

    def _gamecore_play(self, spaces: Spaces, state_size: int, seed: int) -> GamecorePlay:
        """Return what the gamecores play, and how the policy answers them."""
        source, actor = self.parts.source, self.parts.actor
        return GamecorePlay(
            source=source,
            actor=actor,
            policy=PolicyConfig(
                seed=seed,
                state_size=state_size,
                clip_reward=source.is_atari,
                spaces=spaces.described(),
                gamma=self.gamma,
            ),
            steps_per_version=self.batch_steps if self.max_policy_lag is None else None,
            seed=seed,
        )

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
