"""What algorithms share that learn from a replay: settings, turns, the launch.

An algorithm of this family is a config, a trainer, and a subclass of `OffPolicy` that makes its
networks.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, TypeVar

from torch import nn

from bray.goal import Goal, Outcome
from bray.policies.config import TrunkConfig
from bray.run import Run
from bray.sources.config import GamecoreSourceConfig, ServingActorConfig
from bray.sources.environments import make_environments, read_spaces
from bray.sources.gamecores import GamecorePlay, gamecores
from bray.training.algorithm import Algorithm, Takes, check_processes
from bray.training.deploy import keep_spaces
from bray.training.evaluation import evaluate_latest
from bray.training.loop import Loop, Turn
from bray.training.policy_model import policy_model
from bray_actor import PolicyConfig, Runner, segment_spec
from bray_actor.atari import AtariRewardTransform, is_atari
from bray_buffer import ReplayConfig
from bray_core.action_vector import ActionVector
from bray_core.errors import ConfigError
from bray_core.layout import Layout
from bray_core.process.machine import num_cores
from bray_core.settings.ranges import Fraction, PositiveInt, check_fields
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

    def __post_init__(self) -> None:
        check_fields(self)
        if self.warmup_frames > self.capacity:
            raise ConfigError(
                f"warmup_frames: expected at most the capacity={self.capacity}, "
                f"got {self.warmup_frames}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class OffPolicyConfig:
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


class OffPolicy(Algorithm[C]):
    """An algorithm that learns from a replay of single transitions."""

    pacing = "ratio"
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

    @abstractmethod
    def policy(self, spaces: Spaces, seed: int) -> nn.Module:
        """Return the module that acts, the same for the same seed."""

    def acting_model(self, model: Any, worker: int) -> Any:
        """Return the model as a worker asks it, who may explore in a way of its own.

        Args:
            model: the policy's model.
            worker: number of the worker, from 0 on.
        """
        return model

    def replay(self, *, is_local: bool) -> ReplayConfig:
        """Return the replay's settings.

        On Ray it keeps playing and training in their proportion; a local run takes turns.

        Args:
            is_local: whether one process plays and trains.
        """
        source = self.parts.source
        frames = source.num_envs * max(1, source.num_processes) * self.config.steps_per_collect
        sampled = self.config.replays_per_collect * self.config.batch_size
        return ReplayConfig(
            capacity=self.parts.buffer.capacity,
            batch_size=self.config.batch_size,
            min_size=self.parts.buffer.warmup_frames,
            unit="transition",
            # Of stacked frames each is stored once.
            frame_stack={"observation": 0} if is_atari(source.environment) else {},
            n_step=self.parts.agent.n_step,
            gamma=self.config.gamma,
            sampler="prioritized" if self.is_prioritized else "uniform",
            samples_per_insert=None if is_local else sampled / frames,
            error_margin=None if is_local else float(_MARGIN * sampled),
        )

    def turn(self, replay: Any) -> Turn:
        """Return the turns of a local run; what was restored into the replay is not played again.

        Args:
            replay: the replay of the run.
        """
        warmup = self.parts.buffer.warmup_frames - int(replay.stats()["queued"])
        return Turn(
            steps=self.config.steps_per_collect,
            replays=self.config.replays_per_collect,
            warmup_frames=max(0, warmup),
        )

    def check(self) -> None:
        """Refuse gamecore processes that the workers cannot share out evenly."""
        check_processes(self.parts)

    def _gamecore_play(self, spaces: Spaces, *, is_local: bool, seed: int) -> GamecorePlay:
        """Return what the gamecores play, and how the policy answers them."""
        actor = self.parts.actor
        return GamecorePlay(
            source=self.parts.source,
            actor=replace(actor, num_workers=1) if is_local else actor,
            policy=PolicyConfig(
                seed=seed,
                clip_reward=is_atari(self.parts.source.environment),
                spaces=spaces.described(),
            ),
            seed=seed,
        )

    def train(self, run: Run, *, goal: Goal, seed: int = 1) -> Outcome:
        """Play into the replay and train out of it; see `Algorithm`."""
        n, environment = self.parts.source.num_envs, self.parts.source.environment
        spaces = read_spaces(environment)
        keep_spaces(run, spaces)
        policy, parts = self.policy(spaces, seed), self.parts
        batching, play, title = ModelConfig(max_batch_size=n, pad_to=(n,)), None, ""
        if parts.source.num_processes:
            play = self._gamecore_play(spaces, is_local=run.is_local, seed=seed)
            batching = ModelConfig(max_batch_size=play.num_lanes)
            title = ", gamecores over the wire"
        model = policy_model(run, policy, spaces.example, batching, parts.actor)
        action = ActionVector(spaces.action, spaces.origin).spec
        layout = Layout(segment_spec(spaces.recorded, action, self.config.steps_per_collect))
        buffer = run.buffer("replay", layout, self.replay(is_local=run.is_local))
        make = partial(self.trainer, spaces, parts, seed, model, buffer, run.experiment.checkpoints)

        def runner(worker: int) -> Runner:
            environments = make_environments(environment, n, num_cores())
            transform = AtariRewardTransform() if is_atari(environment) else None
            acting, where = self.acting_model(model, worker), seed + 1000 * worker
            return Runner(environments, acting, buffer, seed=where, reward_transform=transform)

        if play is not None:
            source = gamecores(run, play, model, buffer)
        else:
            source = run.rollouts(
                "rollouts",
                runner,
                steps=self.config.steps_per_collect,
                num_workers=parts.actor.num_workers,
            )
        return Loop(
            run,
            f"{self.title} on {environment}{title}",
            model=model,
            trainer=run.trainer("trainer", make),
            source=source,
            turn=self.turn(buffer),
            goal=goal,
            evaluate=partial(evaluate_latest, model, policy, spaces, environment, goal, seed=seed),
        ).until_goal()
