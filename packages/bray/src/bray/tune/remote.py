"""Recipes as trainables of Ray Tune: a search over a recipe's settings, nested in trials.

    search = tune.Tuner(
        trainable("ppo", "CartPole-v1", Goal(max_frames=50_000)),
        param_space={"learning_rate": tune.loguniform(1e-4, 1e-2)},
        tune_config=tune.TuneConfig(metric="return", mode="max", num_samples=4),
    )
    search.fit()

Needs the extra `tune`. Call `bray_core.remote.pool.init_ray()` before: the Ray that Tune would
start by itself listens on all interfaces of the machine. Each trial runs its recipe with
`runtime="local"` in a worker of Tune.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bray
from bray.goal import Goal
from bray.registry import defaults, load
from bray.run import Run
from bray_core.config import from_mapping, to_mapping
from bray_core.errors import CodecError, ConfigError, MissingExtraError
from bray_core.trials.experiment import write_atomic

try:
    from ray import tune
except ImportError:
    raise MissingExtraError("bray.tune", "bray", "tune") from None

_PROGRESS = "frames"
"""Name of the file, in a trial's folder, that says how many frames it has played."""
_MAX_DIGITS = 20


def trainable(
    recipe: str, task: str, goal: Goal, *, seed: int = 1, report_every: int = 4096
) -> Callable[[dict[str, Any]], None]:
    """Return a function that `tune.Tuner` can run: Tune's config is settings of the recipe.

    It reports `frames`, `elapsed_s`, the mean training `return` (once an episode has ended; if none
    has, that of the evaluation) and at the end the `evaluation_return`. Each report brings a
    checkpoint, the trial's folder, from which a trial goes on: after a failure, and with other
    settings where a scheduler (population-based training) lets it exploit another trial. There the
    settings that count are the new ones. A replay is not in it.

    Args:
        recipe: its name, such as `ppo`.
        task: such as a Gymnasium id.
        goal: when a trial evaluates and ends; its frames are those of the whole trial.
        seed: of every trial.
        report_every: frames between two reports.

    Raises:
        ConfigError: `report_every` is not positive, or there is no such recipe.
    """
    if report_every < 1:
        raise ConfigError(f"report_every: expected 1 or more, got {report_every}")
    load(recipe)  # refuses what there is not, before any trial

    def run_trial(config: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        module = load(recipe)
        chosen = to_mapping(defaults(recipe, task)) | _plain(config)
        settings = from_mapping(chosen, module.Config, f"tune: {recipe}")
        # A new folder each time: the worker that ran this trial before may not have ended yet.
        with tempfile.TemporaryDirectory(prefix="bray-", dir=Path.cwd()) as project:
            folder = Path(project) / "trial"
            if (checkpoint := tune.get_checkpoint()) is not None:
                checkpoint.to_directory(folder)
            played = _played(folder)
            left = replace(goal, max_frames=max(1, goal.budget - played))
            with bray.init(project, folder.name) as run:
                run.listen(_Reports(run, played, report_every))
                module.train(run, task, settings, goal=left, seed=seed)

    return run_trial


class _Reports:
    """Reports a run's figures to Tune, with a checkpoint, every so many frames."""

    def __init__(self, run: Run, played: int, every: int) -> None:
        self._folder = run.experiment.path
        self._played = played
        self._every = every
        self._next = played + every

    def __call__(self, figures: Mapping[str, float], save: Callable[[], None]) -> None:
        """Report, where it is time and an episode has ended; an evaluation always."""
        frames = self._played + int(figures.get("frames", 0))
        if "evaluation_return" in figures:  # Tune refuses a report without the metric it goes by
            figures = {"return": figures["evaluation_return"], **figures}
        elif frames < self._next or "return" not in figures:
            return
        self._next = frames + self._every
        save()
        write_atomic(self._folder / _PROGRESS, str(frames).encode())
        checkpoint = tune.Checkpoint.from_directory(self._folder)
        tune.report({**figures, "frames": frames}, checkpoint=checkpoint)


def _played(folder: Path) -> int:
    file = folder / _PROGRESS
    text = file.read_text(errors="replace") if file.exists() else "0"
    if not (text.isascii() and text.isdecimal() and len(text) < _MAX_DIGITS):
        raise CodecError(f"{file}: expected a number of frames, got {text[:50]!r}")
    return int(text)


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without numpy's scalars, which searches draw."""
    return {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in config.items()
    }
