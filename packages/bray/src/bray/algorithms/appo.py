"""APPO: PPO's clipped surrogate on V-trace's targets, for players that never wait.

Petrenko et al. 2020, "Sample Factory: egocentric 3D control from pixels at 100000 FPS with
asynchronous reinforcement learning". Playing and training go side by side as in `impala`; the clip
allows several passes over each replay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from bray.sources import atari
from bray.training.actor_critic import ActorCriticTrainer
from bray.training.generator import KeepsGenerator
from bray.training.lagging import Lagging, LaggingConfig
from bray.training.minibatches import shuffled_order
from bray_actor.spaces import ATARI
from bray_algo.losses import appo
from bray_core.layout import Packed
from bray_core.settings.ranges import NonNegativeInt, PositiveInt
from bray_core.settings.schedule import ScheduledPositiveFloat
from bray_trainer.sequences import Batch, select_segments


@dataclass(frozen=True, kw_only=True, slots=True)
class APPOConfig(LaggingConfig):
    """The clip, the passes, V-trace's clips, and how old a policy may be."""

    clip: ScheduledPositiveFloat = 0.2
    """Clip range ε of the probability ratio, around the policy that acted. Larger steps learn
    faster and collapse sooner. 0.1 to 0.3."""
    epochs: PositiveInt = 4
    """Passes over each replay. More learn more from it, until the policy has left what played.
    1 to 10."""
    minibatches: PositiveInt = 4
    """Steps of the optimiser in a pass; segments are shared out to them. 1 to 16."""
    normalize_advantage: bool = False
    """Whether the advantages of a minibatch are brought to mean 0 and deviation 1."""
    replays_per_collect: PositiveInt = 2
    max_policy_lag: NonNegativeInt = 10


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
            order = shuffled_order(count, self.generator, self.device)
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
            clip=self.now(self.part.clip),
            rho_bar=self.part.rho_bar,
            c_bar=self.part.c_bar,
            value_coefficient=self.part.value_coefficient,
            entropy_coefficient=self.now(self.part.entropy_coefficient),
            normalize_advantage=self.part.normalize_advantage,
        )


class APPO(Lagging[APPOConfig]):
    """Players go on while the trainer takes several passes over each worker's segments."""

    title = "APPO"
    configs: ClassVar[dict[str, type[Any]]] = {**Lagging.configs, "trainer": APPOConfig}
    trainer = APPOTrainer

    @classmethod
    def defaults(cls, task: str) -> Mapping[str, Any]:
        """Return settings for Atari games; other tasks have those of the configs."""
        if not task.startswith(ATARI):
            return {"agent.segment_length": 32}
        games = {
            "agent.segment_length": 32,
            "trainer.learning_rate": 4e-4,
            "trainer.epochs": 2,
            "trainer.minibatches": 8,
            "trainer.replays_per_collect": 1,
            "trainer.c_bar": 0.95,
            "trainer.normalize_advantage": True,
            "trainer.checkpoint_every": 200,
        }
        return {**atari.settings(), **games}
