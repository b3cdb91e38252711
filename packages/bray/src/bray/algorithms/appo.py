"""APPO: PPO's clipped surrogate on V-trace's targets, for players that never wait.

Petrenko et al. 2020, "Sample Factory: egocentric 3D control from pixels at 100000 FPS with
asynchronous reinforcement learning". Playing and training go side by side as in `impala`; the clip
allows several passes over each replay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bray.checks import positive
from bray.goal import Goal, Outcome
from bray.run import Run
from bray.sources import atari
from bray.training.actor_critic import ActorCriticConfig, ActorCriticTrainer
from bray.training.generator import KeepsGenerator
from bray.training.on_policy import Flow, learn
from bray_algo.losses import appo
from bray_core.layout import Packed
from bray_trainer.sequences import Batch, select_segments


@dataclass(frozen=True, kw_only=True, slots=True)
class Config(ActorCriticConfig):
    """Beside what every actor-critic has: the clip, the passes, and how old a policy may be."""

    segment_length: int = 32
    """Steps T that each environment of a worker takes for one replay; 16 to 128."""
    clip: float = 0.2
    """ε, around the policy that acted."""
    epochs: int = 4
    """Passes over each replay."""
    minibatches: int = 4
    """Steps of the optimiser in a pass; segments are shared out to them."""
    rho_bar: float = 1.0
    """ρ̄: V-trace's clip of the weights."""
    c_bar: float = 1.0
    """c̄: V-trace's clip of the traces; below 1 it shortens them, as λ of GAE does."""
    normalize_advantage: bool = False
    """Whether the advantages of a minibatch are brought to mean 0 and deviation 1."""
    replays_per_collect: int = 2
    """Replays that a local run plays before it trains on them."""
    max_policy_lag: int = 10
    """Versions, above which segments are dropped."""
    num_ranks: int = 1
    """Processes that train on Ray, on one mean gradient; each takes replays of its own."""

    def __post_init__(self) -> None:
        ActorCriticConfig.__post_init__(self)
        positive(clip=self.clip, epochs=self.epochs, minibatches=self.minibatches)
        positive(rho_bar=self.rho_bar, c_bar=self.c_bar)
        Flow.of(self).check()


DEFAULTS = {
    atari.TASKS: Config(
        **atari.settings(),
        learning_rate=4e-4,
        segment_length=32,
        epochs=2,
        minibatches=8,
        replays_per_collect=1,
        c_bar=0.95,
        normalize_advantage=True,
        checkpoint_every=200,
    )
}
"""Of Atari games."""


class APPOTrainer(KeepsGenerator, ActorCriticTrainer):
    """Some passes over each replay, in minibatches of whole segments."""

    def __init__(self, *args: Any, seed: int, **kwargs: Any) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        super().__init__(*args, seed=seed, **kwargs)

    def handle(self, replay: Packed) -> Iterator[Batch]:
        """Yield shuffled minibatches."""
        segments = self.segments(replay)
        count = len(segments["length"])
        for _ in range(self.part.epochs):
            order = torch.randperm(count, generator=self.generator)
            for index in order.tensor_split(min(self.part.minibatches, count)):
                yield select_segments(segments, index)

    def loss(self, batch: Batch, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the clipped loss with V-trace's targets of the current policy."""
        current = self.columns(batch)
        return appo.loss(
            current.log_prob,
            current.entropy,
            current.value,
            batch["log_prob"],
            batch["reward"],
            current.final_value,
            batch["terminated"],
            batch["length"],
            gamma=self.part.gamma,
            clip=self.part.clip,
            rho_bar=self.part.rho_bar,
            c_bar=self.part.c_bar,
            value_coefficient=self.part.value_coefficient,
            entropy_coefficient=self.part.entropy_coefficient,
            normalize_advantage=self.part.normalize_advantage,
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
    title, flow = f"APPO on {task}", Flow.of(config)
    return learn(run, title, task, config, APPOTrainer, flow, goal=goal, seed=seed)
