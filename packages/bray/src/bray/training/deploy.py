"""From a trained model to what `bray serve` answers with."""

from __future__ import annotations

import json
from collections.abc import Sequence
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


def export_best(
    run: Run,
    algorithm: type[Algorithm[Any]],
    name: str | None = None,
    *,
    is_main: bool = True,
    agents: Sequence[str] = (),
    answers_agents: bool = False,
) -> ExportReport | None:
    """Export the version with the best evaluation, or the newest; None where there is no model.

    Args:
        run: the run that trained it.
        algorithm: says how its policy is served.
        name: name of the model; None: the only one that is deployed.
        is_main: whether the trial's best version is one of this model.
        agents: patterns of the agents that it plays, where a run has several policies.
        answers_agents: whether it answers the ticks of agents, whatever its algorithm serves alone.

    Raises:
        ExportError: its outputs differ from torch's.
    """
    name = name or deployed_model(run)
    if name is None:
        return None
    model = run.models[name]
    best = BestVersion.read(run.experiment.path) if is_main else None
    version = model.version if best is None else best.version
    folder = run.experiment.models / name / "onnx" / str(version)
    is_actor = answers_agents or algorithm.serves == "actor"
    actor = _actor(run, name, model, agents) if is_actor else None
    if version == model.version:
        report: ExportReport = model.export(folder, name=name, actor=actor)
        return report
    chosen = model.clone(version)
    try:
        report = chosen.export(folder, name=name, actor=actor)
    finally:
        chosen.close()
    return report


def deployed_model(run: Run) -> str | None:
    """Return the name of the model that is deployed; None where there is none."""
    return next((name for name in _NAMES if name in run.models), None)


def keep_spaces(run: Run, spaces: Spaces, model: str | None = None) -> None:
    """Write what a policy sees and may do into its trial, for those who deploy it.

    Args:
        run: has the trial.
        spaces: what is written.
        model: name of the policy's model, where the run has several.
    """
    text = json.dumps(spaces.described(), indent=1)
    folder = run.experiment.path if model is None else run.experiment.models / model
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / _SPACES, text.encode())


def _actor(run: Run, name: str, model: Any, agents: Sequence[str]) -> dict[str, Any]:
    """Return what answers gamecores: `PolicyActor`, with the state of a recurrent policy."""
    config = actor_config(run, name, model)
    if agents:
        config["agents"] = list(agents)
    return {"name": "policy", "config": config}


def actor_config(run: Run, name: str, model: Any) -> dict[str, Any]:
    """Return the settings with which a policy answers: those of a `PolicyConfig`, as JSON."""
    config: dict[str, Any] = {"deterministic": True}
    for folder in (run.experiment.models / name, run.experiment.path):
        if (spaces := folder / _SPACES).is_file():
            config["spaces"] = json.loads(spaces.read_text())
            break
    inputs = model.signature.inputs
    if len(inputs) == 2:
        config["state_size"] = inputs[1].shape[-1]
    return config
