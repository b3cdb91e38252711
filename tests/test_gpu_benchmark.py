"""`make gpu` without a GPU: its scripts run, and a part that hangs or fails costs no other."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


DRY = Namespace(device="cpu", seconds=1.0)


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the script, of a folder that is no package."""
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("benchmarks.gpu.everything")


def program(everything: ModuleType, text: str) -> tuple[object, ...]:
    """Return a part that is a line of Python."""
    return everything.Part("part", 1.0, (sys.executable, "-c", text), is_timed=False)


def test_a_part_that_hangs_is_ended_with_what_it_started(
    everything: ModuleType, tmp_path: Path
) -> None:
    sleeper = program(everything, "import subprocess; subprocess.run(['sleep', '600'])")
    found = everything.run(sleeper, 2.0, DRY, tmp_path)
    assert found["ended"] == "did not end within 2 s"
    assert found["found"] is None


def test_a_part_that_fails_says_so_and_keeps_its_words(
    everything: ModuleType, tmp_path: Path
) -> None:
    failing = program(everything, "raise SystemExit('no such thing')")
    found = everything.run(failing, 60.0, DRY, tmp_path)
    assert found["ended"] == "failed with exit code 1"
    assert "no such thing" in (tmp_path / "part.log").read_text()


def test_the_shares_of_the_time_add_up_to_all_of_it(everything: ModuleType) -> None:
    assert sum(part.share for part in everything.PARTS) == pytest.approx(1.0)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_all_parts_end_without_a_gpu(everything: ModuleType, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu.everything", "--device", "cpu"]
    # of a second each: the hour only keeps a busy machine from ending a part
    command += ["--seconds", "1", "--minutes", "60", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = json.loads((tmp_path / "all.json").read_text())["parts"]
    assert {name: each["ended"] for name, each in found.items()} == {
        part.name: "done" for part in everything.PARTS
    }, done.stdout + done.stderr
    assert "ceiling, fp32" in found["roofline"]["found"]["figures"]
