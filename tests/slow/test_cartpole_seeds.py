"""The five seeds: each reaches 475; the median takes under two minutes on a 2-core machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_seed_reaches_475(seed: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bray_core.cli", "train", "cartpole"]
    command += ["--project", str(tmp_path), "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "cartpole" / "result.json").read_text())
    assert result["evaluation_return"] >= 475
    assert len(result["episode_returns"]) == 100
