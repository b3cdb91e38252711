"""From a trained model to what `bray serve` answers with."""

from __future__ import annotations

import json
from typing import Any

from bray.best import BestVersion
from bray.run import Run
from bray.training.algorithm import Algorithm
from bray_core.files.saved_file import write_atomic
from bray_core.spaces import Spaces
from bray_model import ExportReport

_SPACES = "spaces.json"
"""File of a trial that says what its policy sees and may do."""
_NAMES = ("policy", "main")
"""Names of the model that is deployed, of which a run has one."""


def export_best(run: Run, algorithm: type[Algorithm[Any]]) -> ExportReport | None:
    """Export the version with the best evaluation, or the newest; None where there is no model.

    Args:
        run: the run that trained it.
        algorithm: says how its policy is served.

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
    actor = _actor(run, model) if algorithm.serves == "actor" else None
    if version == model.version:
        report: ExportReport = model.export(folder, actor=actor)
        return report
    chosen = model.clone(version)
    try:
        report = chosen.export(folder, actor=actor)
    finally:
        chosen.close()
    return report


def keep_spaces(run: Run, spaces: Spaces) -> None:
    """Write what a run's policy sees and may do into its trial, for those who deploy it."""
    text = json.dumps(spaces.described(), indent=1)
    write_atomic(run.experiment.path / _SPACES, text.encode())


def _actor(run: Run, model: Any) -> dict[str, Any]:
    """Return what answers gamecores: `PolicyActor`, with the state of a recurrent policy."""
    config: dict[str, Any] = {"deterministic": True}
    spaces = run.experiment.path / _SPACES
    if spaces.is_file():
        config["spaces"] = json.loads(spaces.read_text())
    inputs = model.signature.inputs
    if len(inputs) == 2:
        config["state_size"] = inputs[1].shape[-1]
    return {"name": "policy", "config": config}
