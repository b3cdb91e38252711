"""What the on-policy recipes share: runners play, a queue holds what they recorded, one trainer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from bray.goal import Goal, Outcome
from bray.policies.networks import AnyPolicy, example_inputs, make_policy
from bray.run import Run
from bray.sources.environments import Spaces
from bray.training.compute import chosen, described
from bray.training.evaluation import evaluate_latest
from bray.training.learning import Learning, Pace
from bray.training.players import Players, Settings
from bray_actor import segment_spec
from bray_actor.atari import is_atari
from bray_buffer import BufferConfig
from bray_core.errors import ConfigError
from bray_core.layout import Layout
from bray_trainer import Trainer

_QUEUED_BATCHES = 4
"""Batches of whole segments that the queue of an asynchronous run holds."""


class Flow(NamedTuple):
    """How experience comes to the trainer."""

    batch_steps: int
    """Environment steps of a replay."""
    replays: int = 1
    """Played one after the other in a local run, then trained on: the last of them was played by a
    policy that is `replays - 1` versions old when its turn comes."""
    max_policy_lag: int | None = None
    """Versions, above which segments are dropped; None: on Ray the players wait for each one."""
    num_ranks: int = 1
    """On Ray, processes that train at once, each on a replay of its own."""

    @classmethod
    def of(cls, config: Any) -> Flow:
        """Return that of an asynchronous recipe, by its config: a worker brings a replay."""
        steps = config.segment_length * config.num_envs
        return cls(steps, config.replays_per_collect, config.max_policy_lag, config.num_ranks)

    def check(self) -> None:
        """Refuse a bound that a local run would not keep.

        Raises:
            ConfigError: so.
        """
        for name, number in (
            ("replays_per_collect", self.replays),
            ("num_ranks", self.num_ranks),
        ):
            if number < 1:
                raise ConfigError(f"{name}: expected 1 or more, got {number}")
        if self.replays > 1 + (self.max_policy_lag or 0):
            raise ConfigError(
                f"max_policy_lag: expected {self.replays - 1} or more for "
                f"replays_per_collect={self.replays}, got {self.max_policy_lag}"
            )


def learn(
    run: Run,
    title: str,
    environment: str,
    settings: Settings,
    trainer: Callable[..., Trainer],
    flow: Flow,
    *,
    goal: Goal,
    seed: int,
    module: AnyPolicy | None = None,
) -> Outcome:
    """Play with runners, queue the segments, train on them until the goal is reached.

    Args:
        run: of `bray.init`; an existing trial goes on from its checkpoint.
        title: shown above the figures.
        environment: a Gymnasium id.
        settings: of policy and players.
        trainer: its class, called with the module, the buffer and `model=, part=, seed=,
            directory=`.
        flow: from the players to it.
        goal: the evaluation's return, and when to give up.
        seed: of network, environments and draws.
        module: the policy to begin with; by default one that knows nothing.
    """
    flow.check()
    spaces = Spaces.of(environment)
    num_ranks = 1 if run.is_local else flow.num_ranks
    settings = chosen(
        settings, is_image=spaces.is_image, is_local=run.is_local, num_ranks=num_ranks
    )
    if spaces.is_image:
        title = f"{title}\n{described(settings, is_local=run.is_local, num_ranks=num_ranks)}"
    if run.is_local:
        torch.set_num_threads(settings.trainer_threads or 1)
    if module is None:
        module = make_policy(spaces, settings.hidden, settings.memory_size, seed)
    example = example_inputs(spaces, module.state_size)
    players = Players(spaces, settings, is_local=run.is_local)
    model = run.model("policy", module, example, players.model_config())
    is_lockstep = flow.max_policy_lag is None
    num_workers = 1 if run.is_local else settings.num_workers
    buffer = run.buffer(
        "experience",
        segment_layout(spaces, settings.segment_length, module.state_size),
        _queue(flow, settings.segment_length, run.is_local or is_lockstep),
        num_workers=num_ranks,
    )
    steps = steps_per_collect(
        flow.batch_steps, settings.num_envs, num_workers if is_lockstep else 1
    )
    parts = {"model": model, "part": settings, "directory": run.experiment.checkpoints}
    return Learning(
        run,
        title,
        model=model,
        trainer=run.trainer(
            "trainer",
            partial(trainer, module, buffer, **parts, seed=seed),
            num_workers=num_ranks,
            num_gpus=1.0 if settings.device == "cuda" else 0.0,
        ),
        rollouts=run.rollouts(
            "rollouts",
            lambda worker: players.runner(model, buffer, seed + 1000 * worker),
            steps=steps,
            lockstep=is_lockstep,
            num_workers=num_workers,
        ),
        pace=Pace(steps=steps, collects=flow.replays, replays=flow.replays),
        goal=goal,
        evaluate=partial(
            evaluate_latest,
            model,
            module,
            example,
            environment,
            goal,
            seed=seed,
            state_size=module.state_size,
        ),
    ).until_goal()


def steps_per_collect(batch_steps: int, num_envs: int, num_workers: int) -> int:
    """Return the steps that each environment takes for a replay.

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


def segment_layout(spaces: Spaces, length: int, state_size: int) -> Layout:
    """Return the layout of a policy's segments of T steps; of stacked frames each is stored once.

    Args:
        spaces: of the environment.
        length: T.
        state_size: S of a recurrent policy; 0 is none.
    """
    return Layout(
        segment_spec(
            *spaces.recorded,
            length,
            state_size=state_size,
            stack=is_atari(spaces.environment),
        )
    )


def _queue(flow: Flow, segment_length: int, must_hold_all: bool) -> BufferConfig:
    """Return the queue's settings.

    Where nothing is popped while it is filled it must hold all, be each segment one step; an
    asynchronous one holds little, because what waits there grows old.
    """
    segments = -(-flow.batch_steps // segment_length)
    capacity = flow.batch_steps * flow.replays if must_hold_all else _QUEUED_BATCHES * segments
    return BufferConfig(
        batch_steps=flow.batch_steps,
        capacity=capacity,
        when_full="block",
        max_policy_lag=flow.max_policy_lag,
    )
