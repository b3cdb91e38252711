"""A game of eight steps whose info says what options it began with, and callbacks that note."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

import bray
from bray.callbacks import Progress


class HookedGame(gymnasium.Env[Any, Any]):
    """Ends after eight steps; its last info has metrics."""

    observation_space = spaces.Box(0, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, metric: Any = 0.5) -> None:
        self.metric = metric
        self.options: dict[str, Any] = {}
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.options = options or {}
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        ended = self.steps == 8
        info: dict[str, Any] = {}
        if ended:
            told = {"own": self.metric, "difficulty": self.options.get("difficulty", -1.0)}
            info = {"metrics": told, "success": bool(action == 0), "note": "no number"}
        return np.full(2, self.steps / 8, np.float32), 1.0, ended, False, info


class Notes(bray.Callback):
    """Notes what it is told, and stops after some frames."""

    heard: ClassVar[list[tuple[str, Any]]] = []

    def __init__(self, stop_at: int = 10**9) -> None:
        self.stop_at = stop_at

    def on_start(self, progress: Progress) -> None:
        self.heard.append(("start", progress))

    def on_update(self, progress: Progress) -> None:
        self.heard.append(("update", progress))
        if progress.frames >= self.stop_at:
            progress.stop("enough is enough")

    def on_episode(self, episode: Any) -> None:
        self.heard.append(("episode", episode))

    def on_evaluation(self, evaluation: Any) -> None:
        self.heard.append(("evaluation", evaluation))

    def on_checkpoint(self, checkpoint: Any) -> None:
        self.heard.append(("checkpoint", checkpoint))

    def on_end(self, outcome: Any) -> None:
        self.heard.append(("end", outcome))


class Configured(bray.Callback):
    """A callback with settings of its own."""

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config:
        """Its settings."""

        every: int = 1
        """Updates between two notes."""

    def __init__(self, config: Configured.Config) -> None:
        self.config = config


class Broken(bray.Callback):
    """A callback that cannot be made."""

    def __init__(self) -> None:
        raise OSError("no disk")


def by_progress(progress: Progress) -> dict[str, Any]:
    """Return the curriculum of a test: the difficulty is the number of thousand frames."""
    return {"difficulty": progress.frames // 1000}


def no_settings(progress: Progress) -> Any:
    """Return what is no curriculum."""
    return {"difficulty": object()}


def fails_late(progress: Progress) -> dict[str, Any]:
    """Raise once something was played."""
    if progress.frames:
        raise KeyError("late")
    return {}
