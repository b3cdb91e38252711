"""A learning rate that falls while a run goes on."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from bray_algo import schedules
from bray_core.errors import ConfigError
from bray_core.settings.schedule import Schedule
from bray_trainer import Trainer


def check_annealing(config: Any) -> None:
    """Refuse settings with `anneal_frames` beside a schedule of their `learning_rate`.

    Raises:
        ConfigError: there are both.
    """
    if config.anneal_frames and isinstance(config.learning_rate, Schedule):
        raise ConfigError(
            f"anneal_frames: expected 0 with a schedule of learning_rate, got "
            f"{config.anneal_frames}: the schedule says where it falls"
        )


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
