"""Trials as JSON documents: what the tables of `bray trials` say, for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bray.best import BestVersion
from bray.cli.trial_tables import figures, size_of, state_of
from bray_core.errors import CodecError
from bray_core.files.json_file import finite
from bray_core.files.trial_folders import launches as launch_folders
from bray_core.trials.launch_record import LaunchRecord
from bray_core.trials.trial import Trial, flatten


def as_json(document: object) -> str:
    """Return a document as JSON text; numbers that JSON lacks, such as infinity, become null."""
    return json.dumps(_finite(document), indent=1)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(child) for child in value]
    return finite(value) if isinstance(value, float) else value


def listed_document(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Return an object for each trial, with `problem` where it cannot be read."""
    return [_summary(trial) for trial in trials]


def _summary(trial: Trial) -> dict[str, Any]:
    document: dict[str, Any] = {"name": trial.name, "state": state_of(trial)}
    try:
        newest = trial.newest()
        if newest is not None:
            document |= {"began_s": newest.began_s, "ended_s": newest.ended_s}
        document["figures"] = figures(trial)
    except (CodecError, OSError) as error:
        document["problem"] = str(error)
    return document


def shown_document(trial: Trial) -> dict[str, Any]:
    """Return what a trial holds: figures, the best version, sizes of folders, launches."""
    document = _summary(trial) | {"path": str(trial.path), "launches": _launches(trial)}
    try:
        best = BestVersion.read(trial.path)
        document["best"] = None if best is None else asdict(best)
    except CodecError as error:
        document["problem"] = str(error)
    folders = sorted(path for path in trial.path.iterdir() if path.is_dir())
    document["folders"] = {
        folder.name: dict(zip(("files", "bytes"), size_of([folder]), strict=True))
        for folder in folders
    }
    exports = sorted(trial.path.glob("models/*/onnx/*/manifest.json"))
    document["exports"] = [str(manifest.parent) for manifest in exports]
    return document


def _launches(trial: Trial) -> list[dict[str, Any]]:
    return [_launch(folder.name, folder) for folder in launch_folders(trial.path)]


def _launch(name: str, folder: Path) -> dict[str, Any]:
    try:
        record = LaunchRecord.read(folder)
    except CodecError as error:
        return {"name": name, "problem": str(error)}
    return {"name": name} | ({} if record is None else asdict(record))


def compared_document(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Return settings, launch and figures of each trial, all of them, equal ones too."""
    found = []
    for trial in trials:
        document = _summary(trial)
        try:
            document["settings"] = flatten(trial.config())
            newest = trial.newest()
            document["launch"] = None if newest is None else asdict(newest)
        except (CodecError, OSError) as error:
            document["problem"] = str(error)
        found.append(document)
    return found
