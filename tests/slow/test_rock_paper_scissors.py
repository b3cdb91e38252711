"""A league of rock, paper, scissors: its frozen versions together are hardly to be exploited."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

from bray.viewer import league_results
from bray_algo.league.equilibrium import exploitability, nash

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "league"
PAYOFF = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]], np.float64)


def mixture_of(trial: Path, version: str) -> npt.NDArray[np.float64]:
    """Return the probabilities of the actions of a version such as `main:v12`."""
    learner, _, number = version.partition(":v")
    weights = load_file(trial / "models" / learner / "versions" / f"{number}.safetensors")
    hidden = np.tanh(weights["policy.0.weight"][:, 0] + weights["policy.0.bias"])
    logits = weights["policy.2.weight"] @ hidden + weights["policy.2.bias"]
    odds = np.exp((logits - logits.max()).astype(np.float64))
    return np.asarray(odds / odds.sum())


def test_the_versions_of_a_league_mix_to_an_equilibrium(tmp_path: Path) -> None:
    folder = tmp_path / "league"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("trials", "__pycache__"))
    command = [sys.executable, "-m", "bray_core.cli", "train", "rock_paper_scissors.yaml"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=550, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    trial = folder / "trials" / "rock_paper_scissors"
    versions = list(json.loads((trial / "league.json").read_text())["versions"])
    assert len(versions) >= 6
    policies = np.array([mixture_of(trial, version) for version in versions])
    weights = nash(policies @ PAYOFF @ policies.T).row
    mixture = weights @ policies
    assert exploitability(PAYOFF, mixture / mixture.sum()) < 0.05
    shown: Any = league_results.league(trial)
    assert shown["players"][:3] == ["main", "exploiter", "rival"]
    assert set(shown["players"][3:]) == set(versions)
    assert shown["roles"]["exploiter"] == "main_exploiter"
    ratings: Any = league_results.ratings(trial)
    assert ratings["players"] == shown["players"]
    for low, rating, high in zip(ratings["low"], ratings["rating"], ratings["high"], strict=True):
        assert low < rating < high
