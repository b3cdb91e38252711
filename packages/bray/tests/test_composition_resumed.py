"""A composition that is killed goes on from its checkpoints, with its versions and its league."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_composition_runs import run_of

TEMPLATE = """\
models: {main: {hidden: [16]}, rival: {hidden: [16]}}
trainers:
  main: &ppo
    {algorithm: ppo, steps_per_replay: 128, minibatch_size: 64, epochs: 1, checkpoint_every: 1}
  rival: *ppo
sources:
  board:
    kind: matches
    environment: tictactoe_v3
    num_envs: 8
    opponents: {rule: past, freeze_every: 300, versions: 50}
goal: {agent: main, max_frames: 1000000}
"""
"""Two learners that meet each other, and versions of both."""
COMMAND = [sys.executable, "-m", "bray_core.cli", "train", "duel.yaml", "--project", "trials"]
VERSIONS = 6
"""Frozen versions after which the run is killed."""


def league(folder: Path) -> dict[str, Any]:
    file = folder / "trials" / "duel" / "league.json"
    return json.loads(file.read_text()) if file.exists() else {"league": {"frozen": {}}}


def kill_once_it_has_versions(folder: Path) -> None:
    """Train until enough versions are frozen, and kill the process in the middle of it."""
    with (folder / "words.txt").open("w") as words:
        process = subprocess.Popen(COMMAND, cwd=folder, stdout=words, stderr=words)
    try:
        while len(league(folder)["league"]["frozen"]) < VERSIONS and process.poll() is None:
            time.sleep(0.02)
        assert process.poll() is None, (folder / "words.txt").read_text()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_killed_run_goes_on_with_its_versions_and_its_league(tmp_path: Path) -> None:
    (tmp_path / "duel.yaml").write_text(TEMPLATE)
    kill_once_it_has_versions(tmp_path)
    trial = tmp_path / "trials" / "duel"
    before = league(tmp_path)
    weights = {
        path: path.read_bytes()
        for name in before["league"]["frozen"]
        for learner, number in [name.split(":v")]
        if (path := trial / "models" / learner / "versions" / f"{number}.safetensors").exists()
    }
    progress = json.loads((trial / "checkpoints" / "progress.json").read_text())
    told = yaml.safe_load(TEMPLATE)
    told["goal"]["max_frames"] = progress["frames"] + 1500
    (tmp_path / "duel.yaml").write_text(yaml.safe_dump(told))

    second = subprocess.run(COMMAND, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert second.returncode == 0, second.stdout + second.stderr
    resumed = re.search(r"from policy version (\d+), ([\d,]+) agent steps", second.stdout)
    assert resumed is not None, second.stdout
    assert int(resumed[2].replace(",", "")) == progress["frames"]
    after = league(tmp_path)
    result = json.loads((trial / "result.json").read_text())
    assert progress["frames"] + 1500 <= result["frames"] < progress["frames"] + 1500 + 512
    assert result["version"] > int(resumed[1]) >= 1
    assert list(after["league"]["frozen"])[:VERSIONS] == list(before["league"]["frozen"])[:VERSIONS]
    assert len(after["league"]["frozen"]) > len(before["league"]["frozen"])
    assert len(weights) >= VERSIONS
    for path, content in weights.items():
        assert path.read_bytes() == content, "a frozen version stays as it was"
    assert _games(after) > _games(before)


def _games(state: dict[str, Any]) -> int:
    """Return how many matches a league has counted."""
    return sum(row[-1] for row in state["payoff"]["results"])


def test_a_run_that_ends_leaves_its_last_matches_in_the_league(tmp_path: Path) -> None:
    text = """\
models: {main: {hidden: [8]}}
trainers: {main: {algorithm: ppo, steps_per_replay: 64, minibatch_size: 64, epochs: 1}}
sources:
  board: {kind: matches, environment: "bray:tic-tac-toe", num_envs: 8, opponents: {rule: past}}
goal: {agent: main, max_frames: 128, evaluation_episodes: 2}
"""  # after the second turn there are too few matches to draw opponents anew
    found = run_of(tmp_path, text, exports=False)
    state = json.loads((found["path"] / "league.json").read_text())
    assert state["frames"] == {"main": found["outcome"].frames}
