"""Schedules in a trainer: settings that follow the frames of the trial, such as a learning rate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch.optim import Optimizer

from bray_core.settings.schedule import Schedule, value_at


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayClock:
    """How many frames of the trial have been played when so many replays are trained on.

    A trainer keeps the number of its replays in its checkpoints. So a trial that is resumed goes on
    where it was, and a trainer in a process of its own needs no word from the one that plays.
    """

    frames_per_replay: float
    """Environment steps that are played for each replay."""
    warmup_frames: float = 0.0
    """Environment steps that are played before the first replay."""

    def frames(self, replays: int) -> float:
        """Return the frames when so many replays have been trained on."""
        return self.warmup_frames + replays * self.frames_per_replay


class FollowsSchedules:
    """A trainer whose learning rate and other settings may be schedules of the trial's frames."""

    clock: ReplayClock = ReplayClock(frames_per_replay=1.0)
    """Frames of the trial by the trainer's replays."""
    scheduled_rate: float | Schedule = 0.0
    """The learning rate of all optimisers, if it is a schedule; a number changes nothing."""
    replays: int
    optimizer: Optimizer | Mapping[str, Optimizer]

    def begin_replay(self) -> None:
        """Set the learning rate that is due now."""
        if not isinstance(self.scheduled_rate, Schedule):
            return
        found = self.optimizer
        for optimizer in found.values() if isinstance(found, Mapping) else (found,):
            for group in optimizer.param_groups:
                group["lr"] = self.now(self.scheduled_rate)

    def now(self, setting: float | Schedule) -> float:
        """Return what a setting says at this point of the trial."""
        return value_at(setting, self.clock.frames(self.replays))


def with_schedules(
    make: Callable[..., Any], learning_rate: float | Schedule, clock: ReplayClock
) -> Callable[..., Any]:
    """Return a factory of the same trainer, which then knows its learning rate and its clock.

    Args:
        make: makes the trainer.
        learning_rate: the setting.
        clock: frames of the trial by the trainer's replays.
    """
    return partial(_made, make, learning_rate, clock)


def _made(
    make: Callable[..., Any],
    learning_rate: float | Schedule,
    clock: ReplayClock,
    *arguments: Any,
    **options: Any,
) -> Any:
    trainer = make(*arguments, **options)
    trainer.scheduled_rate, trainer.clock = learning_rate, clock
    return trainer
