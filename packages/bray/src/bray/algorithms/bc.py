"""Behaviour cloning: recorded episodes → log likelihood of what was done → a policy.

Pomerleau 1989, "ALVINN: an autonomous land vehicle in a neural network". Nothing is played but the
evaluations. Where demonstrations come from: `bray.sources.data_sets`, and
`bray/templates/demonstrate.py` makes some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from bray.policies.config import NetworkConfig
from bray.policies.networks import make_policy
from bray.sources import data_sets
from bray.training.algorithm import Parts, Takes
from bray.training.device import DeviceConfig
from bray.training.normalisation import NormalisingTrainer
from bray.training.off_policy.offline import DataSets, Offline, named_data_sets
from bray_algo.distributions import outputs as distribution
from bray_algo.losses import cloning, ppo
from bray_core.errors import ConfigError
from bray_core.layout import Packed
from bray_core.protocols import ModelProtocol
from bray_core.settings.ranges import (
    Fraction,
    NonNegativeFloat,
    PositiveInt,
    check_fields,
)
from bray_core.settings.schedule import ScheduledPositiveFloat, value_at
from bray_core.spaces import Spaces
from bray_trainer import TrainerConfig, to_torch


@dataclass(frozen=True, kw_only=True, slots=True)
class BCConfig(DeviceConfig):
    """The hyperparameters of behaviour cloning."""

    learning_rate: ScheduledPositiveFloat = 1e-3
    """Adam's step size. 1e-4 to 3e-3."""
    batch_size: PositiveInt = 256
    """Demonstrated steps of one step of the optimiser. 32 to 4,096."""
    gamma: Fraction = 0.99
    """Discount per step of the returns that the value is regressed to."""
    value_coefficient: NonNegativeFloat = 0.5
    """Weight of the value's loss: reinforcement learning can go on from there. 0 leaves it out."""
    evaluate_every: PositiveInt = 200
    """Optimiser steps between two evaluations."""
    max_steps: PositiveInt = 2_000
    """Optimiser steps after which training gives up. With too many a small data set is learnt by
    heart, and the policy fails where nobody has been."""

    def __post_init__(self) -> None:
        check_fields(self)


class CloningTrainer(NormalisingTrainer):
    """One batch of demonstrated steps is one step; it pauses before each evaluation."""

    def __init__(
        self,
        module: nn.Module,
        spaces: Spaces,
        where: DataSets,
        config: BCConfig,
        seed: int,
        model: ModelProtocol | None = None,
        directory: Path | None = None,
    ) -> None:
        self.settings = config
        source = data_sets.buffer_of(
            where,
            spaces,
            leaves=data_sets.DEMONSTRATION,
            gamma=config.gamma,
            batch_size=config.batch_size,
            seed=seed,
        )
        trainer = TrainerConfig(
            learning_rate=value_at(config.learning_rate, 0),
            publish_every=config.evaluate_every,
            checkpoint_every=config.evaluate_every,
            device=config.device,
            seed=seed,
        )
        super().__init__(module, source, model=model, config=trainer, directory=directory)

    def handle(self, replay: Packed) -> Iterator[dict[str, Any]]:
        """Yield the batch."""
        batch = to_torch(replay, self.device)
        self.see(batch)
        yield batch

    def loss(self, batch: dict[str, Any], step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return −log π of what was done, with the error of the value where it is known."""
        outputs = self.module(batch["observation"])
        loss, terms = cloning.likelihood_loss(distribution.log_prob(outputs, batch["action"]))
        known = ~batch["return"].isnan()
        error = ppo.value_error(outputs["value"], batch["return"], valid=known)
        return loss + self.settings.value_coefficient * error, {**terms, "value_loss": error}

    def should_pause(self) -> bool:
        """Return whether the driver should evaluate now."""
        return self.steps % self.settings.evaluate_every == 0


class BC(Offline[BCConfig]):
    """A policy that does what recorded episodes did; nothing is played but the evaluations."""

    title = "behaviour cloning"
    takes = Takes(actions=("discrete", "multi_discrete", "box", "mixed"), demonstrations=True)
    configs: ClassVar[dict[str, type[Any]]] = {
        **Offline.configs,
        "model": NetworkConfig,
        "trainer": BCConfig,
    }

    def check(self) -> None:
        """Refuse a policy with memory: demonstrated steps are not in sequence."""
        check_no_memory(self.parts)
        named_data_sets(self.parts)  # or it says that there is none

    def policy(self, spaces: Spaces, seed: int) -> nn.Module:
        """Return the policy, the same for the same seed."""
        return make_policy(spaces, self.parts.model, seed)

    def make_trainer(
        self, spaces: Spaces, seed: int, policy: nn.Module, model: ModelProtocol, directory: Path
    ) -> Callable[[], CloningTrainer]:
        """Return the factory of what clones."""
        where = self.where
        return partial(CloningTrainer, policy, spaces, where, self.config, seed, model, directory)


def check_no_memory(parts: Parts) -> None:
    """Refuse a policy with memory where steps are not in sequence.

    Raises:
        ConfigError: names the setting.
    """
    if parts.model.memory_size:
        raise ConfigError(
            "model.memory_size: expected 0, demonstrated steps are not in sequence, got "
            f"{parts.model.memory_size}"
        )
