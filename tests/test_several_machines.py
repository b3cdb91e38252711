import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_run_spreads_over_machines_and_outlives_one(tmp_path: Path) -> None:
    """In a process of its own: this session's Ray has one node."""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("several_machines.py"))],
        cwd=tmp_path,
        env=os.environ | token,  # of this cluster alone: its ports are open meanwhile
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    said = [line for line in done.stdout.splitlines() if line.startswith("done: ")]
    assert said == ["done: looked", "done: a node lost", "done: closed"]  # Ray speaks too
