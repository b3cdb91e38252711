"""A worker that stands still for half a minute: the rest goes on, and it comes back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest
from benchmarks.soak.watched import Machine, Training

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(600)]

STOPPED_S = 30.0
START_S = 180.0
WORKERS = ("rollouts/0", "experience/0", "model/policy/0")


def trained(training: Training) -> float:
    """Frames that the trainer trained on."""
    return training.look().get("trainer/frames", 0.0)


def test_the_rest_goes_on(train: Callable[..., tuple[Training, Machine]]) -> None:
    training, machine = train()
    training.wait_until(lambda: trained(training) > 0, START_S, "training")
    before = training.workers()
    for name in (*WORKERS, "trainer/0"):
        pid = training.workers()[name]
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(5.0)  # whoever was held up by it stands still by now
            steps, frames = trained(training), training.frames
            time.sleep(STOPPED_S - 5.0)
            learnt, played = trained(training) - steps, training.frames - frames
        finally:
            os.kill(pid, signal.SIGCONT)
        print(f"{name}: {played} frames played and {learnt:.0f} trained on while it stood still")
        if name in WORKERS:
            assert learnt > 0, f"{name} stood still, and nothing was trained on"
        goal = trained(training)
        training.wait_until(lambda: trained(training) > goal, 20.0, f"after {name} went on")  # noqa: B023
    assert training.workers() == before, "nobody was replaced"
    assert training.stop() == 130
    assert machine.end() == []
