import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def may_make_namespaces() -> bool:
    """Whether the kernel and this user allow it."""
    if os.geteuid() or shutil.which("ip") is None:
        return False
    made = subprocess.run(["ip", "netns", "add", "bray-probe"], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", "bray-probe"], capture_output=True, check=False)
    return made.returncode == 0


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("network", ["addresses", "namespaces"])
def test_a_run_spreads_over_machines_and_outlives_one(tmp_path: Path, network: str) -> None:
    """In a process of its own: this session's Ray has one node."""
    if network == "namespaces" and not may_make_namespaces():
        pytest.skip("network namespaces need root and Debian's iproute2")
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("several_machines.py")), network],
        cwd=tmp_path,
        env=os.environ | token,  # of this cluster alone: its ports are open meanwhile
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    said = [line for line in done.stdout.splitlines() if line.startswith("done: ")]
    assert said == ["done: looked", "done: a node lost", "done: closed"]  # Ray speaks too
