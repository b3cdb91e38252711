"""What the trainers of action values share: how settings make one."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any

from torch import nn

from bray.training.algorithm import Parts
from bray.training.normalisation import NormalisingTrainer
from bray.training.off_policy.target import KeepsTarget, make_target
from bray_core.protocols import ModelProtocol
from bray_core.settings.schedule import value_at
from bray_core.spaces import Spaces
from bray_trainer import TrainerConfig


class ValueTrainer(KeepsTarget, NormalisingTrainer):
    """A trainer of one network of action values and of its target network.

    Args:
        spaces: what the policy sees and may do.
        parts: settings of the run's parts.
        seed: seed of the network and of what is drawn.
        model: model that weights are published to; None publishes nowhere.
        buffer: buffer of the transitions.
        directory: folder of the checkpoints; None writes none.
    """

    def __init__(
        self,
        spaces: Spaces,
        parts: Parts,
        seed: int,
        model: ModelProtocol | None,
        buffer: Any,
        directory: Path | None = None,
    ) -> None:
        self.settings: Any = parts.trainer
        self.parts, self.replay = parts, buffer
        module = self.networks(spaces, parts, seed)["policy"]
        self.target = make_target(module)
        self.target.normalize = module.normalize  # both read the same numbers
        super().__init__(
            module,
            buffer,
            model=model,
            config=value_trainer_config(self.settings, seed),
            directory=directory,
            normalize_reward=self.settings.normalize_reward,
        )
        self.target.to(self.device)

    @classmethod
    @abstractmethod
    def networks(cls, spaces: Spaces, parts: Parts, seed: int) -> dict[str, nn.Module]:
        """Make the network as `policy`, the same for the same seed."""


def value_trainer_config(settings: Any, seed: int) -> TrainerConfig:
    """Return the settings of the loop that trains action values, by those of its algorithm."""
    return TrainerConfig(
        learning_rate=value_at(settings.learning_rate, 0),
        max_grad_norm=10.0,
        prefetch=0,
        publish_every=settings.replays_per_collect,
        checkpoint_every=10_000,
        device=settings.device,
        seed=seed,
    )
