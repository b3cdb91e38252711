"""Schedules in a trainer: settings that follow the frames of the trial, such as a learning rate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from torch.optim import Optimizer

from bray_core.settings.schedule import Schedule, value_at
from bray_trainer.hooks import TrainerHooks


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


class FollowsSchedules(TrainerHooks):
    """A trainer whose learning rate and other settings may be schedules of the trial's frames.

    A trial that is resumed with other settings may play more or fewer frames for each replay than
    before. So checkpoints hold the clock, too, and frames go on where they were.
    """

    clock: ReplayClock = ReplayClock(frames_per_replay=1.0)
    """Frames of the trial by the trainer's replays."""
    scheduled_rate: float | Schedule = 0.0
    """The learning rate of all optimisers, if it is a schedule; a number changes nothing."""
    _clock_before: Mapping[str, Any] | None = None
    """Clock of the launch that wrote the checkpoint, with its replays and its shift."""
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
        return value_at(setting, self.frames_after(self.replays))

    def frames_after(self, replays: int) -> float:
        """Return the frames of the trial when so many replays have been trained on."""
        return self.clock.frames(replays) + self._shift()

    def _shift(self) -> float:
        """Return the frames that earlier launches played beyond what the clock counts of them."""
        before = self._clock_before
        if before is None:
            return 0.0
        clock = ReplayClock(**before["clock"])
        shift: float = before["shift"]
        if clock == self.clock:
            return shift
        replays = before["replays"]
        return clock.frames(replays) + shift - self.clock.frames(replays)

    def state_dict(self) -> dict[str, Any]:
        """Return the clock, and the replays and frames that it counts from."""
        now = {"clock": asdict(self.clock), "shift": self._shift(), "replays": self.replays}
        return {**super().state_dict(), "clock": now}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore them; a checkpoint of an earlier version has none."""
        super().load_state_dict(state)
        self._clock_before = state.get("clock")


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
