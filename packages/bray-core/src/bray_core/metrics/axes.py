"""The four x-axes of a curve: frames, optimiser steps, wall time, policy version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

Axis: TypeAlias = Literal["frames", "steps", "policy_version", "seconds", "wall_time_s"]
AXES = get_args(Axis)


@dataclass(frozen=True, kw_only=True, slots=True)
class Axes:
    """How far a trial is; those of a later launch go on where the one before ended."""

    frames: int = 0
    """Environment steps played; trained on, where none are played."""
    steps: int = 0
    """Of the optimiser."""
    policy_version: int = 0
    seconds: float = 0.0
    """That launches of the trial have taken."""
    wall_time_s: float = 0.0
    """Since 1970."""

    def after(self, values: Mapping[str, float], seconds: float, wall_time_s: float) -> Axes:
        """Return how far it is by the newest value of each metric of this launch."""
        frames = values.get("actor/steps", values.get("trainer/frames", 0.0))
        return Axes(
            frames=self.frames + int(frames),
            steps=int(values.get("trainer/steps", self.steps)),
            policy_version=int(values.get("trainer/policy_version", self.policy_version)),
            seconds=self.seconds + seconds,
            wall_time_s=wall_time_s,
        )
