"""What holds for every algorithm: its seed repeats a run, and a second launch goes on with it.

The tasks and settings are those of `tests/old_trials/make.py`, as small as they go.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from bray.registry import names


def _maker() -> Any:
    path = Path(__file__).parent / "old_trials" / "make.py"
    spec = importlib.util.spec_from_file_location("old_trials", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MAKER = _maker()
TRIALS = sorted(MAKER.TRIALS)
Version = tuple[str, int]
Weights = dict[str, np.ndarray]

pytestmark = [pytest.mark.isa, pytest.mark.usefixtures("evaluated_here")]


@pytest.fixture(scope="module")
def launched_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder in which a trial was launched once, made when it is first asked for."""
    made: dict[str, Path] = {}

    def project(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(made[name])
                MAKER.make_demonstrations()
                MAKER.make(name)
        return made[name]

    return project


@pytest.fixture(autouse=True, scope="module")
def _no_export() -> Iterator[None]:
    """Leave out the exports, which take longer than the runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bray.composition.whole_run.export_best", lambda run, recipe: None)
        yield


def versions(trial: Path) -> dict[Version, Weights]:
    """Return the weights of every version that a trial keeps, by model and number."""
    files = sorted(trial.glob("models/*/versions/*.safetensors"))
    return {(file.parts[-3], int(file.stem)): load_file(file) for file in files}


def digest(found: dict[Version, Weights]) -> dict[tuple[Version, str], bytes]:
    """Return the bytes of every leaf, to be compared to the last bit."""
    return {
        (version, leaf): array.tobytes()
        for version, weights in found.items()
        for leaf, array in weights.items()
    }


def checkpoint(trial: Path) -> dict[str, Any]:
    """Return the newest checkpoint; that of ES has one name."""
    state: dict[str, Any] = torch.load(max(trial.glob("checkpoints/*.pt")), weights_only=True)
    return state


def updates(state: dict[str, Any]) -> int:
    return int(state["replays"] if "replays" in state else state["generation"])


def test_every_algorithm_is_here() -> None:
    assert {algorithm for algorithm, _, _ in MAKER.TRIALS.values()} == set(names())


@pytest.mark.parametrize("name", TRIALS)
def test_the_same_seed_repeats_a_run(
    name: str,
    launched_once: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = digest(versions(launched_once(name) / name))
    monkeypatch.chdir(tmp_path)
    MAKER.make_demonstrations()
    MAKER.make(name, trial="same")
    MAKER.make(name, trial="other", seed=2)
    assert first
    assert digest(versions(tmp_path / "same")) == first
    assert digest(versions(tmp_path / "other")) != first


@pytest.mark.parametrize("name", TRIALS)
def test_the_page_of_metrics_has_every_name_of_a_run(
    name: str, launched_once: Callable[[str], Path]
) -> None:
    page = (Path(__file__).parent.parent / "docs" / "metrics.md").read_text()
    found = {
        metric.partition("{")[0]
        for path in launched_once(name).glob("*/launches/*/metrics.jsonl")
        for line in path.read_text().splitlines()
        for metric in json.loads(line)["values"]
    }
    unknown = {metric for metric in found if f"`{metric}`" not in page}
    assert found
    assert {metric for metric in unknown if not metric.startswith("trainer/loss_")} == set()


@pytest.mark.parametrize("name", TRIALS)
def test_a_second_launch_goes_on_from_its_checkpoint(
    name: str,
    launched_once: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    project = Path(shutil.copytree(launched_once(name), tmp_path / "project"))
    trial = project / name
    before, published = checkpoint(trial), versions(trial)
    monkeypatch.chdir(project)
    MAKER.make(name, times=2)
    assert updates(checkpoint(trial)) > updates(before), "it began anew"
    assert max(versions(trial)) > max(published), "its versions are counted on"
    assert digest(versions(trial)) != digest(published)
