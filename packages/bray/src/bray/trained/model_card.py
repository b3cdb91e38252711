"""The model card of a trial: what a person must know of a policy, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import pstdev
from typing import Any

from bray.best import BestVersion
from bray_core.errors import NotFoundError
from bray_core.files.escaping import escape_unprintable
from bray_core.files.json_file import finite
from bray_core.files.trial_folders import CONFIG
from bray_core.trials.launch_record import LaunchRecord
from bray_core.trials.trial import Trial
from bray_model.export_files.manifest import Manifest

_PACKAGES = ("bray", "torch", "numpy", "gymnasium", "ale-py", "mujoco", "box2d", "pettingzoo")
"""Distributions whose versions change how a policy plays."""


def model_card(path: Path, exports: Mapping[str, Path]) -> str:
    """Return the card of a trial, or of an export that says less.

    It names neither the machine nor the command line: the card is given away.

    Args:
        path: folder of the trial or the export.
        exports: name of each policy → folder of its export.

    Raises:
        CodecError: a record of the trial cannot be read.
    """
    trial = _trial(path)
    settings = {} if trial is None else trial.config()
    title = _title(settings) or f"Policy {', '.join(exports)}"
    parts = [f"# {title}", "Trained and packed by bray.", _facts(settings)]
    if trial is not None:
        parts += [_evaluation(trial), _trained_with(trial)]
    parts.append(_policies(exports))
    if (path / CONFIG).is_file():
        parts.append(f"## Settings\n\n```yaml\n{(path / CONFIG).read_text().strip()}\n```")
    return "\n\n".join(filter(None, parts)) + "\n"


def _trial(path: Path) -> Trial | None:
    try:
        return Trial(path)
    except NotFoundError:
        return None


def _title(settings: Mapping[str, Any]) -> str:
    algorithm, environment = settings.get("algorithm"), _environment(settings)
    return f"{algorithm} on {environment}" if algorithm and environment else ""


def _environment(settings: Mapping[str, Any]) -> str:
    source = settings.get("source")
    return str(source.get("environment") or "") if isinstance(source, Mapping) else ""


def _facts(settings: Mapping[str, Any]) -> str:
    rows = {"environment": _environment(settings), "algorithm": settings.get("algorithm")}
    return _table("", rows | {"seed": settings.get("seed")})


def _evaluation(trial: Trial) -> str:
    """Say how good it was found, and over how many episodes."""
    result, best = trial.result(), BestVersion.read(trial.path)
    rows: dict[str, object] = {}
    if (frames := finite(result.get("frames"))) is not None:
        rows["frames of the trial"] = f"{frames:,.0f}"
    if (mean := finite(result.get("evaluation_return"))) is not None:
        rows["last evaluation"] = _last_evaluation(result, mean)
        rows["goal reached"] = "yes" if result.get("reached") else "no"
    if best is not None:
        rows["best evaluation"] = (
            f"mean return {best.evaluation_return:.6g}, version {best.version}, after "
            f"{best.frames:,} frames"
        )
    return _table("Evaluation", rows)


def _last_evaluation(result: Mapping[str, Any], mean: float) -> str:
    returns = [r for one in result.get("episode_returns") or [] if (r := finite(one)) is not None]
    spread = f" ± {pstdev(returns):.3g} over {len(returns)} episodes" if returns else ""
    return f"mean return {mean:.6g}{spread}, version {result.get('version')}"


def _trained_with(trial: Trial) -> str:
    record = trial.newest()
    return "" if record is None else _table("Trained with", dict(_versions(record)))


def _versions(record: LaunchRecord) -> Iterator[tuple[str, str]]:
    yield "python", record.python
    for name, version in record.packages.items():
        if name in _PACKAGES or name.startswith("bray-"):
            yield name, version
    if record.commit:
        yield "commit", record.commit + (", with changes" if record.is_changed else "")


def _policies(exports: Mapping[str, Path]) -> str:
    rows: dict[str, object] = {}
    for name, export in exports.items():
        manifest = Manifest.read(export)
        made = ", ".join(f"{key} {value}" for key, value in manifest.made_with.items())
        rows[name] = f"version {manifest.version}; exported with {made or 'unknown versions'}"
    return _table("Policies", rows)


def _table(title: str, rows: Mapping[str, object]) -> str:
    known = {name: str(value) for name, value in rows.items() if value not in (None, "")}
    if not known:
        return ""
    lines = [f"| {_cell(name)} | {_cell(value)} |" for name, value in known.items()]
    head = f"## {title}\n\n" if title else ""
    return head + "\n".join(["| | |", "|---|---|", *lines])


def _cell(text: str) -> str:
    return escape_unprintable(text).replace("|", "\\|")
