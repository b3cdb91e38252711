import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bray_core import metrics

_CHECKS = Path(__file__).with_name("rank_checks.py")


@pytest.fixture
def recorded() -> Iterator[Callable[[], dict[str, list[float]]]]:
    """What was recorded since the test began: name → [number of values, their sum]."""
    metrics.drain()
    yield lambda: {sample.name: [sample.count, sample.total] for sample in metrics.drain()}
    metrics.drain()


@pytest.fixture(scope="session")
def two_ranks() -> Callable[[Path, Path], list[tuple[int, str, str]]]:
    """Runs a script with a directory as two gloo ranks; gives each one's exit code and output."""
    return _run_two_ranks


def _run_two_ranks(script: Path, directory: Path) -> list[tuple[int, str, str]]:
    free_port = runpy.run_path(str(_CHECKS), run_name="rank_checks")["free_port"]
    environment = {
        **os.environ,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(directory)],
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=110) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [(p.returncode, *output) for p, output in zip(processes, outputs, strict=True)]
