"""PPO over the wire, as `bray train` runs it: what is made in each process.

Gamecores → actor → model → buffer → trainer → model, in lockstep: each policy version answers
exactly `steps_per_replay` ticks, the trainer takes them as one replay, publishes the next version,
and the waiting ticks go on. Each environment has a fixed row in the model's batches
(`bray_actor.policy.lane_barrier`). So the same seed gives the same run, on the same kind of CPU
with the same versions installed, although the gamecores are processes of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bray.algorithms.ppo import Config, PPOTrainer
from bray.policies.networks import AnyPolicy, make_policy
from bray.sources.environments import Spaces
from bray.templates.template import Template
from bray_actor import PolicyActor, PolicyConfig, Recorder
from bray_actor.atari import is_atari
from bray_actor.gamecores.fleet import lanes_at
from bray_actor.policy.lane_barrier import LaneBarrier
from bray_core.protocols import ActorProtocol, BufferProtocol, ModelProtocol


def network(config: Config, spaces: Spaces, seed: int) -> AnyPolicy:
    """Make the policy network, the same for the same seed.

    Raises:
        ConfigError: spaces that no policy is for.
    """
    return make_policy(spaces, config.hidden, 0, seed)


def make_trainer(
    template: Template,
    seed: int,
    model: ModelProtocol,
    buffer: BufferProtocol,
    spaces: Spaces,
    directory: Path,
) -> PPOTrainer:
    """Make the trainer, in whichever process it lives."""
    return PPOTrainer(
        network(template.settings, spaces, seed),
        buffer,
        model=model,
        part=template.settings,
        goal=template.goal,
        seed=seed,
        directory=directory,
    )


def make_actors(
    template: Template,
    seed: int,
    model: ModelProtocol,
    buffer: BufferProtocol,
    episodes: Path,
    worker: int = 0,
) -> Callable[[str], ActorProtocol]:
    """Make the session factory of one actor worker, in the worker's process.

    Args:
        template: the run's template.
        seed: of the draws.
        model: the policy.
        buffer: where finished segments go.
        episodes: folder of the recorded episodes.
        worker: which of the workers this is, from 0: it answers its share of the gamecores.
    """
    settings = template.settings
    lanes = LaneBarrier(
        model,
        lanes_at(worker, settings.num_workers, template.wire.num_processes, settings.num_envs),
        steps=settings.steps_per_replay // settings.num_workers,
    )
    config = PolicyConfig(seed=seed, clip_reward=is_atari(template.environment))
    make = PolicyActor.factory(model, config, buffer=buffer, lanes=lanes)
    every = template.wire.record_every
    if not every:
        return make
    return Recorder(episodes, every=every, max_files=template.keep.episodes).record(make)
