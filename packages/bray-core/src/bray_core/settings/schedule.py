"""Schedules: a number that changes with the frames of a trial, in place of a constant setting."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from bray_core.settings.ranges import (
    FiniteFloat,
    Fraction,
    NonNegativeFloat,
    PositiveFloat,
    check_fields,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """A number that goes from `start` to `end` while the trial plays its first `frames`."""

    start: FiniteFloat
    """The number before the first frame."""
    end: FiniteFloat
    """The number after all the frames, and from then on."""
    frames: PositiveFloat
    """Environment steps of the trial that the change takes, those of earlier launches included."""
    shape: Literal["linear", "cosine", "constant"] = "linear"
    """How it changes: `linear`, on a straight line; `cosine`, on half a cosine, slowly at both
    ends; `constant`, not at all until it jumps from `start` to `end` after the frames."""

    def __post_init__(self) -> None:
        check_fields(self)

    def at(self, frames: float) -> float:
        """Return the number after so many frames of the trial."""
        share = min(1.0, max(0.0, frames / self.frames))
        if share == 1:
            return self.end
        if self.shape == "constant":
            return self.start
        if self.shape == "cosine":
            share = (1 - math.cos(math.pi * share)) / 2
        return self.start + (self.end - self.start) * share


ScheduledPositiveFloat: TypeAlias = PositiveFloat | Schedule
ScheduledNonNegativeFloat: TypeAlias = NonNegativeFloat | Schedule
ScheduledFraction: TypeAlias = Fraction | Schedule


def value_at(setting: float | Schedule, frames: float) -> float:
    """Return what a setting says after so many frames of the trial."""
    return setting.at(frames) if isinstance(setting, Schedule) else setting
