"""A learning rate that falls while a run goes on."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from bray_algo import schedules
from bray_trainer import Trainer


class AnnealsLearningRate(Trainer):
    """A trainer of one optimiser whose `part` has `anneal_frames` and `steps_per_replay`."""

    part: Any

    def make_scheduler(self) -> LRScheduler | None:
        """Return the fall of the learning rate to a tenth, if it is wanted."""
        if not self.part.anneal_frames:
            return None
        assert isinstance(self.optimizer, Optimizer)
        replays = self.part.anneal_frames / self.part.steps_per_replay
        fall = partial(schedules.linear, start=1.0, end=0.1, num_steps=replays)
        return LambdaLR(self.optimizer, fall)
