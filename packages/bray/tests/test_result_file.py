"""The result of a run as a file: JSON as every program reads it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from bray.composition.whole_run import already_reached
from bray.goal import Goal, Outcome, conclude


def _refuse(constant: str) -> Any:
    pytest.fail(f"{constant} is no JSON")


def test_a_run_in_which_no_episode_ended_writes_strict_json(tmp_path: Path) -> None:
    outcome = Outcome(reached=True, evaluation_return=-math.inf, frames=64, seconds=1.0, version=1)
    (tmp_path / "launches").mkdir()  # the folder is that of a trial
    assert conclude(tmp_path, outcome) is outcome
    text = (tmp_path / "result.json").read_text()
    assert json.loads(text, parse_constant=_refuse)["evaluation_return"] is None
    said = already_reached(tmp_path, Goal(max_frames=64))
    assert said is not None
    assert "has reached its budget of 64 frames" in said
    assert "Train on: raise --frames. Start" in said
    assert already_reached(tmp_path, Goal(episode_return=1.0, max_frames=64)) is None
