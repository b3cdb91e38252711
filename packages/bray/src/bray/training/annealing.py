"""A learning rate that falls while a run goes on."""

from __future__ import annotations

from typing import Any

from bray.training.schedules.scheduled_trainer import FollowsSchedules, ReplayClock
from bray_core.errors import ConfigError
from bray_core.settings.schedule import Schedule


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


class AnnealsLearningRate(FollowsSchedules):
    """A trainer whose `part` has `learning_rate`, `anneal_frames` and `steps_per_replay`."""

    part: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.clock = ReplayClock(frames_per_replay=self.part.steps_per_replay)

    def begin_replay(self) -> None:
        """Set the learning rate that is due now: it falls to a tenth, if that is wanted."""
        part = self.part
        if part.anneal_frames:
            self.scheduled_rate = Schedule(
                start=part.learning_rate, end=part.learning_rate / 10, frames=part.anneal_frames
            )
        super().begin_replay()
