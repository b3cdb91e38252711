"""`bray train`: run what a template says, export the best version, say what comes next."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from bray.cli.launch import Launch
from bray.goal import Goal
from bray.registry import load
from bray.templates.template import Template
from bray_core.errors import BrayError

if TYPE_CHECKING:
    from bray.goal import Outcome
    from bray_model import ExportReport


def train(template: Template, launch: Launch) -> int:
    """Train until the goal is reached or the frames are used up; return the exit code.

    The trial's folder then holds checkpoints, versions, metrics, an ONNX export that has been
    compared with torch, and `result.json`.

    Raises:
        ExportError: the export's outputs differ from torch's.
    """
    from bray.cli.closing_message import farewell

    outcome, report = run_template(template, launch)
    if report is not None:
        sys.stdout.write(report.table() + "\n")
    trial = launch.project / launch.trial
    sys.stdout.write(farewell(template, trial, outcome, is_exported=report is not None) + "\n")
    return 0 if outcome.reached else 1


def _completed(template: Template) -> Goal:
    """Return a template's goal with what it left open: see `Goal.completed`."""
    import gymnasium

    from bray_actor.spaces import resolve

    try:
        threshold = gymnasium.spec(resolve(template.environment)).reward_threshold
    except (BrayError, gymnasium.error.Error):  # a game or a task of bray's own
        threshold = None
    return template.goal.completed(reward_threshold=threshold, max_frames=1_000_000)


def run_template(
    template: Template, launch: Launch, meanwhile: AbstractContextManager[None] | None = None
) -> tuple[Outcome, ExportReport | None]:
    """Train, and export the best version.

    Args:
        template: what.
        launch: where.
        meanwhile: entered while it trains.

    Raises:
        ExportError: the export's outputs differ from torch's.
    """
    import torch

    from bray.training.deploy import export_best

    template = replace(template, goal=_completed(template))
    torch.set_num_threads(1)  # the networks are small: threads would only wait for each other
    with launch.open(template.to_mapping(), template.keep) as run:
        with meanwhile or nullcontext():
            if template.wire.num_processes:
                from bray.training.wire_loop import train_over_the_wire

                outcome: Outcome = train_over_the_wire(run, template, template.seed)
            else:
                outcome = load(template.recipe).train(
                    run,
                    template.environment,
                    template.settings,
                    goal=template.goal,
                    seed=template.seed,
                )
        return outcome, export_best(run, template.recipe)
