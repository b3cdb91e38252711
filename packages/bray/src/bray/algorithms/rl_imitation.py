"""PPO from demonstrations: it begins as their clone, softened, and imitates less and less.

Rajeswaran et al. 2018, "Learning complex dexterous manipulation with deep reinforcement learning
and demonstrations", §4: cloning, then a loss mixed of both (equation 3); here with PPO's and a
linear schedule. A sure clone explores little and moves slowly, for PPO's clip bounds the ratio of
probabilities: hence the temperature. All else is `bray.algorithms.ppo`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from bray.algorithms import bc, ppo
from bray.policies.networks import AnyPolicy, make_policy
from bray.sources import data_sets
from bray.sources.config import FrameSourceConfig
from bray.training.algorithm import Takes
from bray.training.off_policy.offline import DataSets, data_sets_of, named_data_sets
from bray.training.on_policy import OnPolicy
from bray_algo.distributions import outputs as distribution
from bray_algo.losses import cloning, imitation
from bray_core.errors import ConfigError
from bray_core.protocols import BufferProtocol
from bray_core.settings.ranges import (
    PositiveFloat,
    PositiveInt,
)
from bray_core.settings.schedule import Schedule, ScheduledNonNegativeFloat, value_at
from bray_core.spaces import Spaces
from bray_trainer import to_torch
from bray_trainer.sequences import Batch, select_steps


@dataclass(frozen=True, kw_only=True, slots=True)
class DemonstratedSourceConfig(FrameSourceConfig):
    """Environments, and recorded episodes."""

    demonstrations: str = "demonstrations"
    """Data set: a folder of recorded episodes, `minari:NAME`, or a `.parquet` or `.arrow` file or a
    folder of such."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RLImitationConfig(ppo.PPOConfig):
    """PPO's hyperparameters, and how it imitates."""

    cloning_steps: PositiveInt = 200
    """Optimiser steps on demonstrations alone before the first frame. Too few and play begins at
    random; too many and the clone is sure of what it saw only once. 100 to 5,000."""
    temperature: PositiveFloat = 4.0
    """Temperature at which the clone then plays: log π is divided by it. 1 leaves it as sure as it
    is, and a sure clone explores little. 1 to 8."""
    imitation_weight: ScheduledNonNegativeFloat = 0.03
    """Weight of the demonstrations' loss at first, beside 1 for PPO's; 0 leaves it out. Too large
    and the policy stays as good as its teacher. 0.01 to 0.3. A schedule, such as `{start: 0.3, end:
    0, frames: 200000}`, says it for all frames of the policy."""
    imitation_frames: PositiveInt = 5_000
    """Environment steps after which that weight has fallen to 0 in a line, where it is a number."""


def _schedule(part: RLImitationConfig) -> Schedule:
    """Return the weight of the demonstrations' loss by the frames trained on."""
    if isinstance(part.imitation_weight, Schedule):
        return part.imitation_weight
    return Schedule(start=part.imitation_weight, end=0.0, frames=part.imitation_frames)


class ImitatingTrainer(ppo.PPOTrainer):
    """A replay is what the policy played and as many demonstrated steps."""

    part: RLImitationConfig

    def __init__(
        self,
        module: Any,
        buffer: BufferProtocol,
        *,
        part: RLImitationConfig,
        where: DataSets,
        spaces: Spaces,
        seed: int,
        **rest: Any,
    ) -> None:
        self.frames = 0
        """Environment steps trained on, by which the imitation fades."""
        self.demonstrated = data_sets.buffer_of(
            where,
            spaces,
            leaves=data_sets.DEMONSTRATION,
            gamma=part.gamma,
            batch_size=part.steps_per_replay,
            seed=seed,
        )
        both: Any = {"experience": buffer, "demonstrations": self.demonstrated}
        super().__init__(module, both, part=part, seed=seed, spaces=spaces, **rest)

    def handle(self, replay: Any) -> Iterator[Batch]:
        """Yield PPO's minibatches, each with demonstrated steps drawn for it.

        Args:
            replay: a `Packed` of each buffer, by name.
        """
        self.frames += int(replay["experience"].tree["length"].sum())
        demonstrated = to_torch(replay["demonstrations"], self.device)
        count, size = len(replay["demonstrations"].block), self.part.minibatch_size
        for batch in super().handle(replay["experience"]):
            index = torch.randint(count, (size,), generator=self.generator)
            yield {**batch, "demonstrated": select_steps(demonstrated, index)}

    def loss(self, batch: Batch, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return PPO's loss and what is left of the demonstrations'.

        These count where they did better than the policy would (the filter of Nair et al. 2018),
        and where nobody knows how well they did: episodes that were cut have no return.
        """
        demonstrated = batch.pop("demonstrated")
        outputs = self.module(demonstrated["observation"])
        log_prob = distribution.log_prob(outputs, demonstrated["action"])
        advantage = (demonstrated["return"] - outputs["value"]).detach()
        counts = cloning.advantage_filter(advantage).masked_fill(advantage.isnan(), 1.0)
        weight = _schedule(self.part).at(self.frames)
        return imitation.mixed_loss(
            super().loss(batch, step),
            cloning.likelihood_loss(log_prob, weight=counts),
            imitation_weight=weight,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps beside the module and the optimiser."""
        return {**super().state_dict(), "frames": self.frames}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` kept."""
        super().load_state_dict(state)
        self.frames = state["frames"]


class RLImitation(ppo.PPO):
    """PPO that begins as the clone of recorded episodes, and imitates less and less."""

    title = "PPO with imitation"
    takes = Takes(actions=OnPolicy.takes.actions, gamecores=True, demonstrations=True)
    short_run = ("trainer.cloning_steps=20", "goal.max_frames=1024")
    configs: ClassVar[dict[str, type[Any]]] = {
        **OnPolicy.configs,
        "source": DemonstratedSourceConfig,
        "trainer": RLImitationConfig,
    }
    trainer = ImitatingTrainer

    @classmethod
    def defaults(cls, task: str) -> Mapping[str, Any]:
        """Return PPO's with larger steps on less: the clone knows the way already."""
        sooner = {
            "trainer.steps_per_replay": 512,
            "trainer.minibatch_size": 128,
            "trainer.learning_rate": 1e-3,
            "trainer.entropy_coefficient": 0.0,
        }
        return {**sooner, **super().defaults(task)}

    def check(self) -> None:
        """Refuse a policy with memory: demonstrated steps are not in sequence."""
        super().check()
        bc.check_no_memory(self.parts)
        named_data_sets(self.parts)  # or it says that there is none

    @property
    def where(self) -> DataSets:
        """The data sets, as a worker finds them."""
        return data_sets_of(self.parts)

    def policy(self, spaces: Spaces, seed: int) -> AnyPolicy:
        """Return the clone of the demonstrations, softened."""
        module = make_policy(spaces, self.parts.model, seed)
        if not hasattr(module, "soften"):
            raise ConfigError(
                f"model.network: {self.parts.model.network!r}: expected a trunk, with "
                "`feature_size`: a whole policy cannot be softened after cloning"
            )
        config = self.parts.trainer
        rate = value_at(config.learning_rate, 0)
        cloning = bc.BCConfig(learning_rate=rate, gamma=config.gamma)
        bc.CloningTrainer(module, spaces, self.where, cloning, seed).run(config.cloning_steps)
        soften: Any = module.soften
        soften(config.temperature)
        return module

    def make_trainer(self, spaces: Spaces, **parts: Any) -> Any:
        """Return the trainer's factory, which reads the demonstrations."""
        return partial(super().make_trainer(spaces, where=self.where, **parts), spaces=spaces)
