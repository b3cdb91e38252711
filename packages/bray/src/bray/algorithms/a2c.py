"""A2C: all environments play a few steps in lockstep, the trainer takes one step on them.

Mnih et al. 2016, "Asynchronous methods for deep reinforcement learning", Algorithm S3, in its
synchronous form: on Ray the players wait for each policy version.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bray.goal import Goal, Outcome
from bray.run import Run
from bray.training.actor_critic import ActorCriticConfig, ActorCriticTrainer
from bray.training.on_policy import Flow, learn
from bray_algo import n_step
from bray_algo.losses import a2c
from bray_trainer.sequences import Batch, valid_steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Config(ActorCriticConfig):
    """Nothing beside what every actor-critic has."""


class A2CTrainer(ActorCriticTrainer):
    """One replay is one step."""

    def loss(self, batch: Batch, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the actor-critic loss; the targets are returns to the segment's end."""
        current = self.columns(batch)
        value = current.value.detach()
        target = n_step(
            batch["reward"],
            value,
            current.final_value,
            batch["terminated"],
            batch["length"],
            gamma=self.part.gamma,
        )
        return a2c.loss(
            current.log_prob,
            current.entropy,
            current.value,
            target - value,
            target,
            value_coefficient=self.part.value_coefficient,
            entropy_coefficient=self.part.entropy_coefficient,
            valid=valid_steps(batch),
        )


def train(
    run: Run, task: str, config: Config | None = None, *, goal: Goal, seed: int = 1
) -> Outcome:
    """Train until the goal is reached or its frames are used up.

    Args:
        run: of `bray.init`; an existing trial goes on from its checkpoint.
        task: a Gymnasium id.
        config: of the algorithm.
        goal: the evaluation's return, and when to give up.
        seed: of network, environments and draws.
    """
    config = config or Config()
    num_workers = 1 if run.is_local else config.num_workers
    flow = Flow(batch_steps=config.segment_length * config.num_envs * num_workers)
    title = f"A2C on {task}"
    return learn(run, title, task, config, A2CTrainer, flow, goal=goal, seed=seed)
