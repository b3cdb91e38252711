"""The slow tests watch trainings from outside, as the benchmarks do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.soak.watched import Machine, Training

APPO = ("train", "appo", "CartPole-v1", "num_workers=2")
FOR_EVER = ("--goal", "1e9", "--frames", "1000000000")


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Callable[..., tuple[Training, Machine]]]:
    """Start trainings on Ray by a command of `bray`; none of their processes stays."""
    started: list[tuple[Training, Machine]] = []

    def start(*command: str) -> tuple[Training, Machine]:
        training = Training([*(command or APPO), *FOR_EVER, "--runtime", "ray"], tmp_path, "trial")
        started.append((training, Machine(training.pid)))
        return started[-1]

    yield start
    for training, machine in started:
        machine.processes()
        training.kill()
        machine.end()
