"""A template's whole run: train until the goal, then export the best version."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import torch

from bray.composition.exports import export_all
from bray.composition.part_errors import memory_errors_of
from bray.composition.resumed_algorithms import check_algorithms
from bray.composition.train import train_composition
from bray.goal import Goal, Outcome
from bray.retention import RetentionPolicy
from bray.run import Run
from bray.sources.environments import reward_threshold
from bray.templates.callbacks import make_callbacks
from bray.templates.template import Template
from bray.training.algorithm import load_algorithm
from bray.training.deploy import export_best
from bray_core.files.json_file import finite
from bray_core.trials.trial import RESULT, Trial
from bray_model import ExportReport

OpenRun: TypeAlias = Callable[[Mapping[str, object], RetentionPolicy], Run]
"""Opens a trial with what is written to its `config.yaml` and what stays on disk."""


def _always(outcome: Outcome) -> bool:
    return True


def run_template(
    template: Template,
    open_run: OpenRun,
    goal: Goal,
    *,
    exports: Callable[[Outcome], bool] = _always,
) -> tuple[Outcome, ExportReport | None]:
    """Train, and export the best version.

    Args:
        template: what to run.
        open_run: opens the trial and starts the runtime.
        goal: the template's, completed.
        exports: whether a run that ended so is worth an export.

    Raises:
        ConfigError: the trial was trained by another algorithm, or a setting is wrong.
        ExportError: the export's outputs differ from torch's.
    """
    torch.set_num_threads(1)  # the networks are small: threads would only wait for each other
    template = replace(template, goal=goal)
    composition = template.composition
    algorithm = template.make() if composition is None else None
    settings = template.to_mapping()
    with open_run(settings, template.keep) as run:
        check_algorithms(run.experiment.path, settings)
        for callback in make_callbacks(template.callbacks):
            run.listen(callback)
        if composition is not None:
            with memory_errors_of("template"):
                outcome = train_composition(run, composition, goal)
            return outcome, export_all(run, composition) if exports(outcome) else None
        assert algorithm is not None, "a template of the short form has one"
        with memory_errors_of(template.algorithm):
            outcome = algorithm.train(run, goal=goal, seed=template.seed)
        return outcome, export_best(run, type(algorithm)) if exports(outcome) else None


def completed_goal(template: Template) -> Goal:
    """Return a template's goal with what it left open decided; see `Goal.completed`."""
    return template.goal.completed(
        reward_threshold=reward_threshold(template.environment),
        max_frames=load_algorithm(template.algorithm).budget,
    )


def already_reached(trial: Path, goal: Goal) -> str | None:
    """Return what to say of a trial that has reached a goal; None where there is more to do.

    Args:
        trial: folder of the trial.
        goal: what is to be reached, completed.
    """
    if not (trial / RESULT).is_file():
        return None
    result = Trial(trial).result()
    mean, frames = finite(result.get("evaluation_return")), result.get("frames", 0)
    mean = -math.inf if mean is None else mean
    if not result.get("reached"):
        return None
    if goal.wanted is None:
        if frames < goal.budget:
            return None
        wanted, on = f"budget of {goal.budget:,} frames", "raise --frames"
    elif not goal.is_reached(mean):
        return None
    else:
        wanted, on = f"goal {goal.wanted:g}", "--go-on, or raise --goal"
    return (
        f"{trial} has reached its {wanted}: {goal.measure} {mean:.6g} after {frames:,} frames. "
        f"Train on: {on}. Start afresh: another --trial."
    )
