"""Trials of earlier code, kept in `tests/old_trials`, go on with today's: update, export, format.

`tests/old_trials/make.py` made them. Never make a kept trial anew: it would be one of today.
"""

from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bray.best import BestVersion
from bray.cli.launch import Launch
from bray.composition.whole_run import completed_goal, run_template
from bray.registry import REMOVED, names
from bray.templates import loading
from bray_core.errors import ConfigError, FormatError
from bray_core.trials.trial import Trial
from bray_model import Model

pytestmark = pytest.mark.usefixtures("evaluated_here")

FOLDER = Path(__file__).with_name("old_trials")
DEMONSTRATIONS = "demonstrations"
KEPT = sorted(
    path
    for path in FOLDER.glob("format_*/*.tar.xz")
    if not path.name.startswith((DEMONSTRATIONS, *REMOVED))
)
NEWER = 99


def unpacked(kept: Path, project: Path) -> Path:
    """Unpack a trial, and the demonstrations of its time, into a project."""
    for name in (DEMONSTRATIONS, kept.name.removesuffix(".tar.xz")):
        with tarfile.open(kept.with_name(f"{name}.tar.xz")) as archive:
            archive.extractall(project, filter="data")
    return project / name


def of(name: str, number: int = 0) -> Path:
    return FOLDER / f"format_{number}" / f"{name}.tar.xz"


def go_on(trial: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Resume a trial for as much again, as `bray train TRIAL` does; return the export's report."""
    monkeypatch.chdir(trial.parent)
    read = loading.load(f"{trial.name}/config.yaml")
    longer = {}
    if hasattr(read.parts.trainer, "max_steps"):  # it counts instead of frames
        longer = {"max_steps": read.parts.trainer.max_steps + 2}
    parts = replace(read.parts, trainer=replace(read.parts.trainer, **longer))
    frames = max(read.goal.budget, Trial(trial).result()["frames"])
    read = replace(read, parts=parts, goal=replace(read.goal, max_frames=2 * frames))
    launch = Launch(project=Path(), trial=trial.name)
    return run_template(read, launch.open, completed_goal(read))


def newest(trial: Path) -> dict[str, Any]:
    """Return the newest checkpoint; that of ES has one name."""
    path = max(trial.glob("checkpoints/*.pt"))
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state


def updates(state: dict[str, Any]) -> int:
    return int(state["replays"] if "replays" in state else state["generation"])


WITHOUT = {"pqn", "tqc", "crossq", "iql", "cql", "td3_bc", "grpo", "sft", "dpo"}
"""Algorithms that came after the format of the kept trials."""


def test_every_algorithm_has_an_old_trial() -> None:
    kept = {path.name.removesuffix(".tar.xz").partition("-")[0] for path in KEPT}
    assert kept == set(names()) - WITHOUT
    assert all(path.stat().st_size < 50_000 for path in KEPT)


@pytest.mark.parametrize("name", REMOVED)
def test_a_trial_of_a_removed_algorithm_says_what_does_it_now(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = unpacked(of(name), tmp_path)
    before = {path: path.read_bytes() for path in trial.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=rf"algorithm: '{name}' was removed: ppo with .*matches"):
        go_on(trial, monkeypatch)
    assert {path: path.read_bytes() for path in trial.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "kept",
    [
        kept
        if kept.name.startswith(("ppo.", "dqn."))
        else pytest.param(kept, marks=pytest.mark.long)
        for kept in KEPT
    ],
    ids=lambda kept: f"{kept.parent.name}-{kept.name[:-7]}",
)
def test_an_old_trial_goes_on_and_exports(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trial = unpacked(kept, tmp_path)
    before, index = newest(trial), sorted(trial.glob("models/*/versions/index.json"))[0]
    versions = json.loads(index.read_bytes())["versions"]
    written = {p.name: p.read_bytes() for p in trial.glob("*.json") if p.name != "result.json"}
    assert "format" not in before
    outcome, report = go_on(trial, monkeypatch)
    after = newest(trial)
    assert updates(after) > updates(before), "it began anew"
    assert after["format"] == 1
    assert outcome.version > min(map(int, versions))
    assert (report.path / "model.onnx").is_file()
    assert Trial(trial).result()["version"] == outcome.version
    with Model(report.path) as served:
        assert served.version == report.version
    for name, was in written.items():  # a best version stays where none is better
        now = (trial / name).read_bytes()
        assert now == was or json.loads(now)["format"] == 1
    capsys.readouterr()


@pytest.mark.parametrize(("name", "steps"), [("ppo", 32), ("a2c", 16)])
def test_the_frames_of_an_old_trial_count(
    name: str, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By PPO's own counters, or by the last result: there was no `progress.json`."""
    trial = unpacked(of(name), tmp_path)
    before, played = newest(trial), Trial(trial).result()["frames"]
    outcome, _ = go_on(trial, monkeypatch)
    assert outcome.frames == 2 * played
    assert updates(newest(trial)) - updates(before) == played // steps
    progress = json.loads((trial / "checkpoints" / "progress.json").read_text())
    assert progress["frames"] == outcome.frames


def raise_format(path: Path) -> None:
    """Let a file say that newer code wrote it."""
    if path.suffix == ".json":
        path.write_text(json.dumps(json.loads(path.read_bytes()) | {"format": NEWER}))
    elif path.suffix == ".pt":
        torch.save(torch.load(path, weights_only=True) | {"format": NEWER}, path)
    else:
        raw = path.read_bytes()
        assert raw.count(b'"format": 2') == 1
        path.write_bytes(raw.replace(b'"format": 2', b'"format": %d' % NEWER))


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("dqn", "checkpoints/replay-000000004.pt"),
        ("dqn", "buffers/replay/0.buffer"),
        ("dqn", "models/policy/versions/index.json"),
        ("es", "checkpoints/evolution.pt"),
    ],
)
def test_what_newer_code_wrote_is_refused_and_stays(
    name: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = unpacked(of(name), tmp_path)
    raise_format(trial / file)
    before = (trial / file).read_bytes()
    with pytest.raises(FormatError, match=rf"{Path(file).name}: has format {NEWER}, this version"):
        go_on(trial, monkeypatch)
    assert (trial / file).read_bytes() == before


def test_a_best_version_that_newer_code_wrote_is_refused(tmp_path: Path) -> None:
    trial = unpacked(of("ppo"), tmp_path)
    assert BestVersion.read(trial) is not None
    raise_format(trial / "best.json")
    with pytest.raises(FormatError, match=rf"best\.json: has format {NEWER}"):
        BestVersion.read(trial)
