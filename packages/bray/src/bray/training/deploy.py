"""From a trained model to what `bray serve` answers with."""

from __future__ import annotations

from typing import Any

from bray.best import BestVersion
from bray.run import Run
from bray_model import ExportReport

_NOT_BY_GAMECORES = ("alphazero", "league", "mappo", "qmix", "selfplay")
"""Recipes whose policy is served as a function of its inputs."""
_NAMES = ("policy", "main")
"""Of the model that is deployed."""


def answers_gamecores(recipe: str) -> bool:
    """Return whether a recipe's policy answers the ticks of gamecores once it is served."""
    return recipe not in _NOT_BY_GAMECORES


def export_best(run: Run, recipe: str) -> ExportReport | None:
    """Export the version with the best evaluation, or the newest; None where there is no model.

    Raises:
        ExportError: its outputs differ from torch's.
    """
    name = next((name for name in _NAMES if name in run.models), None)
    if name is None:
        return None
    model = run.models[name]
    best = BestVersion.read(run.experiment.path)
    version = model.version if best is None else best.version
    folder = run.experiment.models / name / "onnx" / str(version)
    actor = _actor(model) if answers_gamecores(recipe) else None
    if version == model.version:
        report: ExportReport = model.export(folder, actor=actor)
        return report
    chosen = model.clone(version)
    try:
        report = chosen.export(folder, actor=actor)
    finally:
        chosen.close()
    return report


def _actor(model: Any) -> dict[str, Any]:
    """Return what answers gamecores: `PolicyActor`, with the state of a recurrent policy."""
    config: dict[str, Any] = {"deterministic": True}
    inputs = model.signature.inputs
    if len(inputs) == 2:
        config["state_size"] = inputs[1].shape[-1]
    return {"name": "policy", "config": config}
