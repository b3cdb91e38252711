"""PPO over the wire, as `bray train` runs it: what is made in each process.

Gamecores → actor → model → buffer → trainer → model, in lockstep: each policy version answers
exactly `steps_per_replay` ticks, the trainer takes them as one replay, publishes the next version,
and the waiting ticks go on. So the same seed gives the same run although the gamecores are
processes of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bray.environments import Spaces
from bray.policies import Policy, make_policy
from bray.recipes.ppo import PPOTrainer
from bray.template import ModelPart, Template
from bray_actor import PolicyActor, PolicyConfig, Recorder, StepBudget
from bray_core.protocols import Actor, Buffer, Model


def network(part: ModelPart, spaces: Spaces, seed: int) -> Policy:
    """Make the policy network, the same for the same seed.

    Raises:
        ConfigError: spaces that no policy is for.
    """
    policy = make_policy(spaces, part.hidden, 0, seed)
    assert isinstance(policy, Policy)
    return policy


def make_trainer(
    template: Template,
    seed: int,
    model: Model,
    buffer: Buffer,
    spaces: Spaces,
    directory: Path,
) -> PPOTrainer:
    """Make the trainer, in whichever process it lives."""
    return PPOTrainer(
        network(template.model, spaces, seed),
        buffer,
        model=model,
        part=template.trainer,
        goal=template.goal,
        seed=seed,
        directory=directory,
    )


def make_actors(
    template: Template, seed: int, model: Model, buffer: Buffer, episodes: Path
) -> Callable[[str], Actor]:
    """Make the session factory of one actor worker, in the worker's process."""
    steps = template.trainer.steps_per_replay // template.actor.num_workers
    budget = StepBudget(steps, model)
    make = PolicyActor.factory(model, PolicyConfig(seed=seed), buffer=buffer, budget=budget)
    every = template.actor.record_every
    return Recorder(episodes, every=every).record(make) if every else make
