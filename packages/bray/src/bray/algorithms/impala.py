"""IMPALA: players that never wait, a trainer that corrects for their older policies by V-trace.

Espeholt et al. 2018, "IMPALA: scalable distributed deep-RL with importance weighted actor-learner
architectures". On Ray the players go on while the trainer trains, held back only by a full queue;
a local run plays a few replays before it trains on them, so that the later ones are off-policy too.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bray.checks import positive
from bray.goal import Goal, Outcome
from bray.run import Run
from bray.sources import atari
from bray.training.actor_critic import ActorCriticConfig, ActorCriticTrainer
from bray.training.on_policy import Flow, learn
from bray_algo.losses import vtrace_actor_critic
from bray_trainer.sequences import Batch


@dataclass(frozen=True, kw_only=True, slots=True)
class Config(ActorCriticConfig):
    """Beside what every actor-critic has: V-trace's clips, and how old a policy may be."""

    learning_rate: float = 5e-4
    """Adam's: one step a replay, and twice as much is unsteady."""
    rho_bar: float = 1.0
    """ρ̄: clip of the weights; it says which policy's values are learnt."""
    c_bar: float = 1.0
    """c̄: clip of the traces."""
    replays_per_collect: int = 4
    """Replays that a local run plays before it trains on them."""
    max_policy_lag: int = 20
    """Versions, above which segments are dropped."""
    num_ranks: int = 1
    """Processes that train on Ray, on one mean gradient; each takes replays of its own."""

    def __post_init__(self) -> None:
        ActorCriticConfig.__post_init__(self)
        positive(rho_bar=self.rho_bar, c_bar=self.c_bar)
        Flow.of(self).check()


DEFAULTS = {atari.TASKS: Config(**atari.settings(), segment_length=20, checkpoint_every=200)}
"""Of Atari games."""


class IMPALATrainer(ActorCriticTrainer):
    """One replay is one step."""

    def loss(self, batch: Batch, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the actor-critic loss with V-trace's targets and advantages."""
        current = self.columns(batch)
        return vtrace_actor_critic.loss(
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
    title, flow = f"IMPALA on {task}", Flow.of(config)
    return learn(run, title, task, config, IMPALATrainer, flow, goal=goal, seed=seed)
