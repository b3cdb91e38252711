"""A torch training loop: replays in, published weights and whole checkpoints out."""

from bray_trainer.config import TrainerConfig
from bray_trainer.distributed.ranks import Ranks
from bray_trainer.trainer import Trainer
from bray_trainer.transfer import to_torch

__all__ = ["Ranks", "Trainer", "TrainerConfig", "to_torch"]
