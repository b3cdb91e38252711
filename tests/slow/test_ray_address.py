"""`--address` of a Ray cluster that somebody else started."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(300)]

SHORT = ("goal.episode_return=20", "goal.evaluate_at=15", "goal.evaluation_episodes=8")


@pytest.fixture
def cluster() -> Iterator[str]:
    """A cluster of `ray start`, ended by its process group."""
    ray = str(Path(sys.executable).with_name("ray"))
    command = [ray, "start", "--head", "--block", "--port=0", "--num-cpus=4"]
    command += ["--include-dashboard=false", "--disable-usage-stats"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        address = None
        for line in process.stdout:
            match = re.search(r"--address='([\d.]+:\d+)'", line)
            if match:
                address = match.group(1)
                break
        assert address is not None, "ray start ended before it gave an address"
        yield address
        os.killpg(process.pid, signal.SIGTERM)


def test_a_running_cluster_is_used_and_left_alone(cluster: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bray_core.cli", "train", "cartpole", *SHORT]
    command += ["--project", str(tmp_path), "--runtime", "ray", "--address", cluster]
    for _ in range(2):  # the second one finds the cluster as the first one left it
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "cartpole" / "result.json").read_text())
    assert result["evaluation_return"] >= 20
