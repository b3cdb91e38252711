"""Runs of matches by their templates: what a kill leaves, and self-play over the wire."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from bray.viewer import league_results
from bray_core.cli import main

EXAMPLE = Path(__file__).parents[3] / "examples/league/rock_paper_scissors.py"
SIMULATOR = """\
import sys

from rock_paper_scissors import RockPaperScissors

from bray_actor.gamecores.multi_agent_gamecore import play_matches

play_matches(RockPaperScissors, f"tcp://127.0.0.1:{sys.argv[1]}", lanes=8)
"""
TEMPLATE = """\
algorithm: ppo
model: {hidden: [4]}
trainer: {steps_per_replay: 64, epochs: 1}
source:
  kind: matches
  %s
  opponents: {freeze_every: 600, latest_share: 0.25}
goal: {max_frames: 1000, evaluation_episodes: 2}
"""


def trained(folder: Path, source: str) -> Path:
    """Train by a template, and return its trial."""
    (folder / "mine.yaml").write_text(TEMPLATE % source)
    assert main(["train", str(folder / "mine.yaml"), "--project", str(folder / "trials")]) == 0
    return folder / "trials" / "mine"


def played_with_versions(trial: Path) -> tuple[dict[str, int], float]:
    """Return the versions of a league's file, and how many games the learner had with them."""
    state = json.loads((trial / "league.json").read_text())
    shown: Any = league_results.league(trial)
    assert shown["players"] == ["policy", *state["versions"]]
    return state["versions"], sum(shown["games"][0])


def test_results_since_the_last_freeze_are_in_the_file(tmp_path: Path) -> None:
    trial = trained(tmp_path, "environment: bray:tic-tac-toe\n  num_envs: 4")
    versions, games = played_with_versions(trial)
    assert len(versions) == 1
    assert games > 10


@pytest.mark.long
def test_one_learner_plays_both_sides_of_a_simulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(EXAMPLE, tmp_path)
    (tmp_path / "sim.py").write_text(SIMULATOR)
    monkeypatch.chdir(tmp_path)
    lines = [
        f"command: {sys.executable} sim.py {{port}}",
        "agents: {left: policy, right: policy}",
        "spaces: {observation: {shape: [1]}, action: {discrete: 3}}",
    ]
    versions, games = played_with_versions(trained(tmp_path, "\n  ".join(lines)))
    assert len(versions) == 1
    assert games > 10
