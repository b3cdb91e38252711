"""The four x-axes of a curve: frames, optimiser steps, wall time, policy version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

Axis: TypeAlias = Literal["frames", "steps", "policy_version", "seconds", "wall_time_s"]
AXES = get_args(Axis)


@dataclass(frozen=True, kw_only=True, slots=True)
class Axes:
    """How far a trial is. A later launch goes on where the one before ended."""

    frames: int = 0
    """Environment steps that were played; steps trained on, where nothing is played."""
    steps: int = 0
    """Steps of the optimiser."""
    policy_version: int = 0
    seconds: float = 0.0
    """Seconds that all launches of the trial have taken."""
    wall_time_s: float = 0.0
    """Seconds since 1970."""

    def after(self, values: Mapping[str, float], seconds: float, wall_time_s: float) -> Axes:
        """Return how far the trial is now.

        Args:
            values: Newest value of each metric of this launch.
            seconds: Seconds since the launch began.
            wall_time_s: Seconds since 1970.
        """
        frames = values.get("actor/steps", values.get("trainer/frames", 0.0))
        return Axes(
            frames=self.frames + int(frames),
            steps=int(values.get("trainer/steps", self.steps)),
            policy_version=int(values.get("trainer/policy_version", self.policy_version)),
            seconds=self.seconds + seconds,
            wall_time_s=wall_time_s,
        )
