"""Metrics of the replays that were trained on, and the figures of `Trainer.progress`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bray_core import metrics
from bray_core.layout import Packed

Replay: TypeAlias = Packed | Mapping[str, Packed]


class ReplayMetrics:
    """Records metrics of each replay, and keeps the figures of the last one."""

    def __init__(self) -> None:
        self.figures: dict[str, float] = {}
        self._ticked = 0.0

    def begin(self) -> None:
        """Take the time from which steps per second count."""
        self._ticked = time.perf_counter()

    def add_replay(self, replay: Replay, means: Mapping[str, float], steps: int) -> None:
        """Record a replay that was trained on.

        Args:
            replay: Replay whose valid steps are counted.
            means: Means of its losses and terms.
            steps: Number of optimiser steps that were taken on it.
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


def num_steps(replay: Replay) -> int | None:
    """Return the valid steps of a replay; None if no segments of it have a leaf `length`."""
    found = [_leaf(part, "length") for part in _parts(replay)]
    lengths = [length for length in found if length is not None]
    return sum(int(length.sum()) for length in lengths) if lengths else None


def policy_lag(replay: Replay, version: int) -> float | None:
    """Return by how many versions the replay's valid steps are older than `version`, on average.

    None if no segments of it have a leaf `policy_version`, or a valid step. Of several buffers
    the mean of theirs is returned.
    """
    lags = [lag for part in _parts(replay) if (lag := _lag(part, version)) is not None]
    return sum(lags) / len(lags) if lags else None


def _lag(part: Packed, version: int) -> float | None:
    versions, length = _leaf(part, "policy_version"), _leaf(part, "length")
    if versions is None:
        return None
    if length is not None and versions.ndim == 2:  # [B, T]
        versions = versions[np.arange(versions.shape[1]) < length[:, None]]
    return float(version - versions.mean()) if versions.size else None


def _parts(replay: Replay) -> Iterable[Packed]:
    """Return what came of each buffer."""
    return [replay] if isinstance(replay, Packed) else replay.values()


def _leaf(part: Packed, path: str) -> NDArray[Any] | None:
    """Return a leaf; without the views of all the others, which take longer than a small step."""
    for field in part.layout.fields:
        if field.path == path:
            raw = part.block[..., field.offset : field.offset + field.nbytes]
            return raw.view(field.dtype).reshape(*part.block.shape[:-1], *field.shape)
    return None
