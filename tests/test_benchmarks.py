"""Every benchmark stands in the table of `benchmarks/README.md`, and starts."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bray.zoo.entries import find

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "benchmarks"
SCRIPTS = sorted(
    str(file.relative_to(FOLDER).with_suffix(""))
    for part in ("micro/*", "training/*", "text/*", "soak/*", "gpu/everything")
    for file in FOLDER.glob(f"{part}.py")
    if "main(" in file.read_text()
)


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, "-m", f"benchmarks.{script.replace('/', '.')}", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_table_names_each_once() -> None:
    rows = re.findall(r"^\| \[([\w/]+)\]\(([\w/]+)\.py\)", (FOLDER / "README.md").read_text(), re.M)
    assert all(name == path for name, path in rows)
    assert sorted(name for name, _ in rows) == SCRIPTS


@pytest.mark.long
@pytest.mark.parametrize("script", SCRIPTS)
def test_it_starts(script: str) -> None:
    assert "--json FILE" in run(script, "--help")


@pytest.mark.long
def test_frames_to_a_goal_are_counted_with_settings_as_the_page_writes_them() -> None:
    settings = ["learning_rate=2e-3", "hidden=[8]", "--goal", "1", "--seeds", "1"]
    found = run("training/frames_to_goal", "ppo", "CartPole-v1", *settings)
    assert "median 4,096 frames of seeds [1]" in found


@pytest.mark.long
def test_a_run_of_a_task_goes_on_where_it_was_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hours of runs are spread over several sittings."""
    monkeypatch.syspath_prepend(ROOT)
    tasks = importlib.import_module("benchmarks.training.tasks")
    trial = tmp_path / "kept" / "pole"
    cut_short = tasks.bray(find("CartPole-v1"), seed=1, frames=4_000, trial=trial)
    whole = tasks.bray(find("CartPole-v1"), seed=1, frames=8_000, trial=trial)
    seen = [frames for frames, _ in whole["curve"]]
    assert whole["curve"][: len(cut_short["curve"])] == cut_short["curve"]
    assert seen == sorted(seen)
    assert seen[-1] > 4_000
    assert whole["seconds"] > cut_short["seconds"]


def test_the_harness_tells_medians_ratios_and_the_machine() -> None:
    found = json.loads(run("micro/cli", "--rounds", "1", "--json", "-"))
    (table,) = found["tables"]
    empty, ours = table["rows"]
    assert ours["ratio"] == pytest.approx(ours["median"] / empty["median"])
    assert ours["rounds"] == [ours["median"]]
    assert found["options"]["rounds"] == "1"
    assert found["machine"]["cores"] >= 1
    assert any("bray --help" in line for line in found["printed"])


@pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
@pytest.mark.parametrize(
    ("script", "result", "table", "names"),
    [
        ("training/cartpole", "cartpole", ("CPU of all processes", "s"), ("bray", "sb3")),
        (
            "micro/model_http",
            "model_http",
            ("small over HTTP", "requests/s"),
            ("bray, /step", "mosec"),
        ),
    ],
)
def test_the_front_page_tells_the_ratios_that_were_kept(
    page: str, script: str, result: str, table: tuple[str, str], names: tuple[str, str]
) -> None:
    kept = json.loads((FOLDER / f"results/{result}.json").read_text())
    (rows,) = (t["rows"] for t in kept["tables"] if (t["title"], t["unit"]) == table)
    ours, peers = ({row["name"]: row["ratio"] for row in rows}[name] for name in names)
    (told,) = re.findall(rf"{script}\.py\)[^|]*\|[^|]*\| ([\d.]+)", (ROOT / page).read_text())
    assert told == f"{ours / peers:.1f}"
