"""What `bray train` says in the end: what was reached, where everything is, what to try next."""

from __future__ import annotations

import os
from pathlib import Path

from bray.goal import Goal, Outcome
from bray.sources.multi_agent_config import MultiAgentSourceConfig
from bray.templates.template import Template
from bray.training.algorithm import load_algorithm
from bray_model.text.text_folder import language_models_of


def closing_message(
    template: Template,
    trial: Path,
    outcome: Outcome,
    *,
    is_exported: bool,
    recorded: int = 0,
) -> str:
    """Return the closing text of a run, in a few lines.

    Args:
        template: what was run.
        trial: folder of the trial.
        outcome: how it ended.
        is_exported: whether there is an export to serve.
        recorded: number of episodes that were recorded for the viewer.
    """
    goal = template.goal
    verdict = "reached its goal" if outcome.reached else "did not reach its goal"
    if goal.wanted is None:
        verdict = "has ended"
    prefix = "uv run " if "UV" in os.environ else ""  # as the user called us
    shown = [(f"bray view {trial}", "how the run went")]
    if is_exported and _can_be_watched(template):
        shown.append((f"bray watch {trial}", "see the policy play"))
    if is_exported:
        shown.append((f"bray serve {trial}", "answer from the export, without torch or Ray"))
    if is_exported and _can_be_played(template):
        play = f"bray play {trial} --address tcp://127.0.0.1:7300"
        shown.append((play, "play against that server"))
    if language_models_of(trial):
        shown.append((f"bray serve {trial}", "answer at an OpenAI-compatible endpoint"))
    shown.append((f"tensorboard --logdir {trial}", "the curves"))
    further = "with more --frames" if goal.wanted is None else "with --go-on"
    again = further if outcome.reached else "again"
    stopped = [f"A callback stopped it: {outcome.stopped}"] if outcome.stopped else []
    width = max(len(command) for command, _ in shown)
    return "\n".join(
        [
            "",
            f"{template.environment or trial.name} {verdict}: {goal.measure} "
            f"{outcome.evaluation_return:.6g} "
            f"over {len(outcome.episode_returns)} evaluation episodes ({_wanted(goal)}), "
            f"policy version {outcome.version}, {outcome.frames:,} frames in "
            f"{outcome.seconds:.0f} s.",
            *stopped,
            "",
            f"Everything is in {trial}:",
            f"  checkpoints/        the trainer's state; run the same command {again} to go on",
            "  models/             weights by version, and the export",
            "  launches/           metrics of each launch (TensorBoard events and JSON lines)",
            *([f"  episodes/           {recorded} episodes of the policy"] if recorded else []),
            "  bray.log            what every part had to say",
            "",
            "Try next:",
            *(f"  {prefix}{command:{width}}  {what}" for command, what in shown),
        ]
    )


def _can_be_watched(template: Template) -> bool:
    """Return whether `bray watch` plays it: all but simulators, and teams that answer rows."""
    if template.algorithm == "alphazero":
        return True
    is_simulator = getattr(template.parts.source, "is_simulator", False)
    return load_algorithm(template.algorithm).serves == "actor" and not is_simulator


def _can_be_played(template: Template) -> bool:
    """Return whether `bray play` has the environment: neither simulators nor several agents."""
    source = template.parts.source
    is_other = isinstance(source, MultiAgentSourceConfig) or getattr(source, "is_simulator", False)
    return load_algorithm(template.algorithm).serves == "actor" and not is_other


def _wanted(goal: Goal) -> str:
    return "no goal" if goal.wanted is None else f"goal {goal.wanted:g}"
