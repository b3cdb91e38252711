"""The last words of `bray train`: what was reached, where everything is, what to try next."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from bray.template import Template

if TYPE_CHECKING:
    from bray.train import Result


def farewell(template: Template, trial: Path, result: Result) -> str:
    """Return the closing text of a run."""
    source, goal = template.source, template.goal
    verdict = "reached" if result.reached else "did not reach"
    prefix = "uv run " if "UV" in os.environ else ""  # as the user called us
    environment = "cartpole" if source.environment == "CartPole-v1" else source.environment
    commands = (
        (f"bray view {trial}", "how the run went"),
        (f"bray serve {trial}", "answer gamecores from the export, without torch or Ray"),
        (f"bray play {environment} --address tcp://127.0.0.1:7300", "play against that server"),
        (f"tensorboard --logdir {trial}", "the curves"),
    )
    width = max(len(command) for command, _ in commands)
    return "\n".join(
        [
            "",
            f"{source.environment} {verdict} its goal: mean return {result.evaluation_return:.1f} "
            f"over {goal.evaluation_episodes} evaluation episodes (goal {goal.episode_return:g}), "
            f"policy version {result.version}, {result.frames:,} frames in {result.train_s:.0f} s.",
            "",
            f"Everything is in {trial}:",
            "  checkpoints/        the trainer's state; run the same command again to go on",
            "  models/policy/      weights by version, and the ONNX export with its manifest",
            "  launches/           metrics of each launch (TensorBoard events and JSON lines)",
            "  bray.log            what every part had to say",
            "",
            "Try next:",
            *(f"  {prefix}{command:{width}}  {what}" for command, what in commands),
        ]
    )
