"""A2C: all environments play a few steps in lockstep, the trainer takes one step on them.

Mnih et al. 2016, "Asynchronous methods for deep reinforcement learning", Algorithm S3, in its
synchronous form: on Ray the players wait for each policy version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from bray.training.actor_critic import ActorCriticConfig, ActorCriticTrainer
from bray.training.on_policy import OnPolicy
from bray_algo import n_step
from bray_algo.losses import a2c
from bray_trainer.sequences import Batch, valid_steps


@dataclass(frozen=True, kw_only=True, slots=True)
class A2CConfig(ActorCriticConfig):
    """A2C has what every actor-critic has."""


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
            entropy_coefficient=self.now(self.part.entropy_coefficient),
            valid=valid_steps(batch),
        )


class A2C(OnPolicy[A2CConfig]):
    """Each policy version plays one segment in every environment, and is trained on it once."""

    title = "A2C"
    pacing = "lockstep"
    configs: ClassVar[dict[str, type[Any]]] = {**OnPolicy.configs, "trainer": A2CConfig}
    trainer = A2CTrainer

    @property
    def batch_steps(self) -> int:
        """Environment steps of a replay: a segment of each environment of all workers."""
        is_wire = bool(self.parts.source.num_processes)  # then they are those of all gamecores
        return super().batch_steps * (1 if is_wire else int(self.parts.actor.num_workers))
