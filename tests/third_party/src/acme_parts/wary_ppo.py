"""PPO that learns more from what went worse than expected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from bray.algorithms.ppo import PPO, PPOConfig, PPOTrainer
from bray.training.on_policy import OnPolicy
from bray_core.settings.ranges import PositiveFloat
from bray_trainer.sequences import Batch


@dataclass(frozen=True, kw_only=True, slots=True)
class WaryPPOConfig(PPOConfig):
    """PPO's hyperparameters, and one more."""

    wariness: PositiveFloat = 1.5
    """Weight of negative advantages. 1 is PPO; large ones avoid all risk. 1 to 3."""


class WaryPPOTrainer(PPOTrainer):
    """PPO's trainer with other advantages."""

    part: WaryPPOConfig

    def loss(self, batch: Batch, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return PPO's loss over one minibatch whose negative advantages are scaled."""
        advantage = batch["advantage"]
        wary = torch.where(advantage < 0, self.part.wariness * advantage, advantage)
        return super().loss({**batch, "advantage": wary}, step)


class WaryPPO(PPO):
    """PPO with a weight for what went worse than expected."""

    title = "Wary PPO"
    configs: ClassVar[dict[str, type[Any]]] = {**OnPolicy.configs, "trainer": WaryPPOConfig}
    trainer = WaryPPOTrainer
