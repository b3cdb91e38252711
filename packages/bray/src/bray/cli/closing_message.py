"""The last words of `bray train`: what was reached, where everything is, what to try next."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from bray.goal import Goal
from bray.templates.template import Template
from bray.training.deploy import answers_gamecores

if TYPE_CHECKING:
    from bray.goal import Outcome


def farewell(template: Template, trial: Path, outcome: Outcome, *, is_exported: bool) -> str:
    """Return the closing text of a run."""
    goal = template.goal
    verdict = "reached" if outcome.reached else "did not reach"
    prefix = "uv run " if "UV" in os.environ else ""  # as the user called us
    shown = [(f"bray view {trial}", "how the run went")]
    if is_exported:
        shown.append((f"bray serve {trial}", "answer from the export, without torch or Ray"))
    if is_exported and answers_gamecores(template.recipe):
        play = f"bray play {template.environment} --address tcp://127.0.0.1:7300"
        shown.append((play, "play against that server"))
    shown.append((f"tensorboard --logdir {trial}", "the curves"))
    width = max(len(command) for command, _ in shown)
    return "\n".join(
        [
            "",
            f"{template.environment} {verdict} its goal: mean return "
            f"{outcome.evaluation_return:.6g} "
            f"over {goal.evaluation_episodes} evaluation episodes ({_wanted(goal)}), "
            f"policy version {outcome.version}, {outcome.frames:,} frames in "
            f"{outcome.seconds:.0f} s.",
            "",
            f"Everything is in {trial}:",
            "  checkpoints/        the trainer's state; run the same command again to go on",
            "  models/             weights by version, and the ONNX export with its manifest",
            "  launches/           metrics of each launch (TensorBoard events and JSON lines)",
            "  bray.log            what every part had to say",
            "",
            "Try next:",
            *(f"  {prefix}{command:{width}}  {what}" for command, what in shown),
        ]
    )


def _wanted(goal: Goal) -> str:
    return "no goal" if goal.episode_return is None else f"goal {goal.episode_return:g}"
