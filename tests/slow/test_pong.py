"""`bray train atari` learns Pong from its frames: the score rises clearly above that of chance.

Chance scores about -20.5. The policy is to be above -15 over ten evaluation games within so many
frames: an hour or so on two quiet cores with bf16. `PONG_FRAMES`, `PONG_MINUTES`: other bounds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FRAMES = int(os.environ.get("PONG_FRAMES", "2_000_000"))
MINUTES = float(os.environ.get("PONG_MINUTES", "90"))
RETURN = -15.0


@pytest.mark.slow
@pytest.mark.timeout(MINUTES * 60 + 60)
def test_pong_is_learnt_from_its_frames(tmp_path: Path) -> None:
    """Ends as soon as an evaluation is good enough."""
    command = [
        sys.executable,
        "-m",
        "bray_core.cli",
        "train",
        "atari",
        "--project",
        str(tmp_path),
    ]
    command += [f"goal.episode_return={RETURN}", f"goal.evaluate_at={RETURN}"]
    command += [f"goal.max_frames={FRAMES}"]
    # All cores, as a user has them: the tests' own setting is one thread.
    environment = {name: text for name, text in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        timeout=MINUTES * 60,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    result = json.loads((tmp_path / "atari" / "result.json").read_text())
    assert result["evaluation_return"] >= RETURN
