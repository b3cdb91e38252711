"""The driver is killed in the middle: its processes end, and the same command goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.soak.watched import Machine, Training

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(600)]

START_S = 180.0
WORKERS_END_S = 30.0
END_S = 120.0
"""Two agents of Ray's linger for more than a minute."""
COMMAND = ("train", "appo", "CartPole-v1", "num_workers=2", "checkpoint_every=20")


def rows(trial: Path) -> list[list[dict[str, float]]]:
    """Return the lines of each launch's metrics."""
    files = sorted(trial.glob("launches/*/metrics.jsonl"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def test_the_same_command_goes_on(train: Callable[..., tuple[Training, Machine]]) -> None:
    training, machine = train(*COMMAND)
    checkpoints = training.path / "checkpoints"
    training.wait_until(lambda: len(list(checkpoints.glob("*.pt"))) >= 2, START_S, "checkpoints")
    assert machine.look().segments > 0
    workers = set(training.workers().values())
    assert workers
    training.kill()
    deadline = time.monotonic() + WORKERS_END_S
    while left := workers & set(machine.processes()):
        assert time.monotonic() < deadline, f"workers {left} outlive the driver"
        time.sleep(0.2)
    saved = max(int(path.stem.partition("-")[2]) for path in checkpoints.glob("*.pt"))
    memory = machine.segments()
    again, second_machine = train(*COMMAND)
    again.wait_until(lambda: again.look().get("trainer/frames", 0) > 0, START_S, "training")
    assert not any(path.exists() for path in memory), "swept away by the next start"
    resumed = f"resumed from {checkpoints} after "
    (line,) = [x for x in (again.path / "bray.log").read_text().splitlines() if resumed in x]
    assert int(line.partition(resumed)[2].split()[0]) >= saved
    assert again.stop() == 130
    assert second_machine.end() == []
    assert machine.end(END_S) == []
    first, second = rows(again.path)
    for axis in ("frames", "steps", "policy_version", "seconds"):
        assert second[-1][axis] >= 0.8 * first[-1][axis], f"{axis} begins anew"
    assert not second_machine.segments()
