"""Algorithms as trainables of Ray Tune: a search over the settings of an algorithm.

    search = tune.Tuner(
        trainable("ppo", "CartPole-v1", Goal(max_frames=50_000)),
        param_space={"learning_rate": tune.loguniform(1e-4, 1e-2)},
        tune_config=tune.TuneConfig(metric="return", mode="max", num_samples=4),
    )
    search.fit()

Needs the extra `tune`. Call `bray_core.remote.cluster.init_ray()` before: the Ray that Tune would
start by itself listens on all interfaces of the machine. Each trial trains with
`runtime="local"` in a worker of Tune.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bray.goal import Goal
from bray.run import Run, init
from bray.templates.loading import compose
from bray_actor.environments.spec import located_code
from bray_core.errors import ConfigError, MissingExtraError

try:
    from ray import tune
except ImportError:
    raise MissingExtraError("bray.tune", "bray", "tune") from None


def trainable(
    algorithm: str, task: str, goal: Goal, *, seed: int = 1, report_every: int = 4096
) -> Callable[[dict[str, Any]], None]:
    """Return a function that `tune.Tuner` can run: Tune's config is settings of the algorithm.

    It reports `frames`, `elapsed_s`, the mean training `return` (once an episode has ended; if none
    has, that of the evaluation) and at the end the `evaluation_return`. Each report brings a
    checkpoint, the trial's folder, from which a trial goes on: after a failure, and with other
    settings where a scheduler (population-based training) lets it exploit another trial. There the
    new settings count. The content of a replay is not in the checkpoint.

    Args:
        algorithm: name of the algorithm, such as `ppo`.
        task: what is played, such as a Gymnasium id.
        goal: when a trial evaluates and ends; its frames count from the trial's beginning, over all
            its launches.
        seed: seed of everything random, the same in every trial.
        report_every: number of frames between two reports. Each brings a checkpoint: small numbers
            cost time, with large ones a scheduler decides late.

    Raises:
        ConfigError: `report_every` is not positive, or there is no such algorithm.
    """
    if report_every < 1:
        raise ConfigError(f"report_every: expected 1 or more, got {report_every}")
    here = Path.cwd()  # Tune's workers run in folders of their own
    algorithm, task = located_code(algorithm), located_code(task)
    compose(algorithm, task)  # refuses what there is not, before any trial

    def run_trial(config: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        settings = _located(_plain(config), here)
        chosen = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
        template = compose(algorithm, task, chosen)
        # A new folder each time: the worker that ran this trial before may not have ended yet.
        with tempfile.TemporaryDirectory(prefix="bray-", dir=Path.cwd()) as project:
            folder = Path(project) / "trial"
            if (checkpoint := tune.get_checkpoint()) is not None:
                checkpoint.to_directory(folder)
            with init(project, folder.name) as run:
                run.listen(_Reports(run, report_every))
                template.make().train(run, goal=goal, seed=seed)

    return run_trial


class _Reports:
    """Reports a run's figures to Tune, with a checkpoint, every so many frames."""

    def __init__(self, run: Run, every: int) -> None:
        self._folder = run.experiment.path
        self._every = every
        self._next = every

    def __call__(self, figures: Mapping[str, float], save: Callable[[], None]) -> None:
        """Report if the time has come and an episode has ended; an evaluation always."""
        frames = int(figures.get("frames", 0))
        if "evaluation_return" in figures:  # Tune refuses a report without the metric it goes by
            figures = {"return": figures["evaluation_return"], **figures}
        elif frames < self._next or "return" not in figures:
            return
        self._next = frames + self._every
        save()
        checkpoint = tune.Checkpoint.from_directory(self._folder)
        tune.report({**figures, "frames": frames}, checkpoint=checkpoint)


def _located(value: Any, folder: Path) -> Any:
    """Return settings with absolute paths in the place of a folder's `file.py:Class`."""
    if isinstance(value, Mapping):
        return {name: _located(child, folder) for name, child in value.items()}
    if isinstance(value, list | tuple):
        return [_located(child, folder) for child in value]
    return located_code(value, folder) if isinstance(value, str) else value


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without numpy's scalars, which searches draw."""
    return {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in config.items()
    }
