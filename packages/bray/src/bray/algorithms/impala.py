"""IMPALA: players that never wait, a trainer that corrects for their older policies by V-trace.

Espeholt et al. 2018, "IMPALA: scalable distributed deep-RL with importance weighted actor-learner
architectures". On Ray the players go on while the trainer trains, held back only by a full queue;
a local run plays a few replays before it trains on them, so that the later ones are off-policy too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from torch import Tensor

from bray.sources import atari
from bray.training.actor_critic import ActorCriticConfig, ActorCriticTrainer
from bray.training.on_policy import OnPolicy
from bray_actor.spaces import ATARI
from bray_algo.losses import impala
from bray_core.settings.ranges import NonNegativeInt, PositiveFloat, PositiveInt, Range
from bray_trainer.sequences import Batch


@dataclass(frozen=True, kw_only=True, slots=True)
class IMPALAConfig(ActorCriticConfig):
    """V-trace's clips, and how old a policy may be."""

    learning_rate: PositiveFloat = 5e-4
    """Adam's step size, one step a replay. Twice as much is unsteady on CartPole; 1e-4 to 6e-4."""
    rho_bar: Annotated[float, Range(above=0, allow_infinity=True)] = 1.0
    """ρ̄: V-trace's clip of the importance weights; it says which policy's values are learnt. Lower
    is steadier, and nearer to the policy that acted."""
    c_bar: Annotated[float, Range(above=0, allow_infinity=True)] = 1.0
    """c̄: V-trace's clip of the traces. Below 1 it shortens them, as λ of GAE does: less variance,
    more bias."""
    replays_per_collect: PositiveInt = 4
    """Replays that a local run plays before it trains on them. More make the later ones older, as
    they are on Ray; 1 is on-policy."""
    max_policy_lag: NonNegativeInt = 20
    """Versions, above which segments are dropped: too old, they teach little. Dropping many wastes
    play; watch `buffer/dropped`."""
    num_ranks: PositiveInt = 1
    """Processes that train on Ray, on one mean gradient; each takes replays of its own."""


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
            entropy_coefficient=self.part.entropy_coefficient,
        )


class IMPALA(OnPolicy[IMPALAConfig]):
    """Players go on while the trainer trains; a replay is one worker's segments."""

    title = "IMPALA"
    pacing = "lagging"
    configs: ClassVar[dict[str, type[Any]]] = {**OnPolicy.configs, "trainer": IMPALAConfig}
    trainer = IMPALATrainer

    @classmethod
    def defaults(cls, task: str) -> Mapping[str, Any]:
        """Return settings for Atari games; other tasks have those of the configs."""
        if not task.startswith(ATARI):
            return {}
        games = {"agent.segment_length": 20, "trainer.checkpoint_every": 200}
        return {**atari.settings(), **games}

    @property
    def replays_per_collect(self) -> int:
        """Replays that a local run plays before it trains on them."""
        return self.config.replays_per_collect

    @property
    def max_policy_lag(self) -> int | None:
        """Versions, above which segments are dropped."""
        return self.config.max_policy_lag

    @property
    def num_ranks(self) -> int:
        """Processes that train at once on Ray."""
        return self.config.num_ranks
