"""What a trainer tells of its replays: metrics, and the figures of `progress`."""

from __future__ import annotations

import time
from collections.abc import Mapping

from bray_core import metrics
from bray_trainer.figures import num_steps, policy_lag
from bray_trainer.pops import Replay


class ReplayReport:
    """Keeps the figures of the last replay."""

    def __init__(self) -> None:
        self.figures: dict[str, float] = {}
        self._ticked = 0.0

    def begin(self) -> None:
        """Take the time from which steps per second count."""
        self._ticked = time.perf_counter()

    def add_replay(self, replay: Replay, means: Mapping[str, float], steps: int) -> None:
        """Record a replay that was trained on.

        Args:
            replay: its steps are counted.
            means: of its losses and terms.
            steps: optimiser steps that were taken on it.
        """
        now = time.perf_counter()
        self.figures["steps_per_s"] = steps / (now - self._ticked)
        self._ticked = now
        for name, value in means.items():
            metrics.record(f"trainer/{name}", value)
        frames = num_steps(replay)
        if frames is not None:
            metrics.record("trainer/frames", frames, kind="count")
        self.figures |= means

    def add_lag(self, replay: Replay, version: int) -> None:
        """Record by how many versions a replay is older than the newest."""
        lag = policy_lag(replay, version)
        if lag is not None:
            metrics.record("trainer/policy_lag_versions", lag)
            self.figures["lag"] = lag

    def add_skipped(self, steps: int) -> None:
        """Record steps that were not taken because something was not finite."""
        metrics.record("trainer/skipped_steps", steps, kind="count")
        self.figures["skipped_steps"] = self.figures.get("skipped_steps", 0) + steps

    def add_evaluation(self, figures: Mapping[str, float]) -> None:
        """Record the figures of an evaluation."""
        for name, value in figures.items():
            metrics.record(f"trainer/eval_{name}", value)
            self.figures[f"eval_{name}"] = value
