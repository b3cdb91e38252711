"""What the trainers of on-policy algorithms share: how settings make one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from bray.training.normalisation import NormalisingTrainer
from bray_core.protocols import ModelProtocol
from bray_core.settings.schedule import value_at
from bray_trainer import TrainerConfig


class OnPolicyTrainer(NormalisingTrainer):
    """A trainer of one module by one optimiser, made by an algorithm's settings.

    Args:
        module: policy that is trained.
        buffer: buffer of its segments.
        model: model that weights are published to.
        part: the algorithm's settings.
        seed: seed of what is drawn.
        directory: folder of the checkpoints; None writes none.
    """

    def __init__(
        self,
        module: nn.Module,
        buffer: Any,
        *,
        model: ModelProtocol,
        part: Any,
        seed: int,
        directory: Path | None = None,
    ) -> None:
        self.part = part
        config = TrainerConfig(
            learning_rate=value_at(part.learning_rate, 0),
            max_grad_norm=part.max_grad_norm,
            checkpoint_every=part.checkpoint_every,
            precision=part.precision,
            device=part.device,
            threads=part.trainer_threads,
            seed=seed,
        )
        super().__init__(
            module,
            buffer,
            model=model,
            config=config,
            directory=directory,
            normalize_reward=part.normalize_reward,
        )
