"""IMPALA: players that never wait, a trainer that corrects for their older policies by V-trace.

Espeholt et al. 2018, "IMPALA: scalable distributed deep-RL with importance weighted actor-learner
architectures". On Ray the players go on while the trainer trains, held back only by a full queue;
a local run plays a few replays before it trains on them, so that the later ones are off-policy too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from bray.sources import atari
from bray.training.actor_critic import ActorCriticTrainer
from bray.training.lagging import Lagging, LaggingConfig
from bray_actor.spaces import ATARI
from bray_algo.losses import impala
from bray_core.settings.schedule import ScheduledPositiveFloat
from bray_trainer.sequences import Batch


@dataclass(frozen=True, kw_only=True, slots=True)
class IMPALAConfig(LaggingConfig):
    """V-trace's clips, and how old a policy may be."""

    learning_rate: ScheduledPositiveFloat = 5e-4
    """Adam's step size, one step a replay. Twice as much is unsteady on CartPole; 1e-4 to 6e-4."""


class IMPALATrainer(ActorCriticTrainer):
    """One replay is one step."""

    def loss(self, batch: Batch, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the actor-critic loss with V-trace's targets and advantages."""
        current = self.columns(batch)
        return impala.loss(
            current.log_prob,
            current.entropy,
            current.value,
            batch["log_prob"],
            batch["reward"],
            current.final_value,
            batch["terminated"],
            batch["length"],
            gamma=self.part.gamma,
            rho_bar=self.part.rho_bar,
            c_bar=self.part.c_bar,
            value_coefficient=self.part.value_coefficient,
            entropy_coefficient=self.now(self.part.entropy_coefficient),
        )


class IMPALA(Lagging[IMPALAConfig]):
    """Players go on while the trainer trains; a replay is one worker's segments."""

    title = "IMPALA"
    configs: ClassVar[dict[str, type[Any]]] = {**Lagging.configs, "trainer": IMPALAConfig}
    trainer = IMPALATrainer

    @classmethod
    def defaults(cls, task: str) -> Mapping[str, Any]:
        """Return settings for Atari games; other tasks have those of the configs."""
        if not task.startswith(ATARI):
            return {}
        games = {"agent.segment_length": 20, "trainer.checkpoint_every": 200}
        return {**atari.settings(), **games}
