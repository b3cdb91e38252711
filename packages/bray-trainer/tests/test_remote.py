from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bray_core import nested
from bray_core.layout import Layout, Packed
from bray_trainer import Trainer, TrainerConfig

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

LAYOUT = Layout(nested.spec({"x": np.zeros(3, np.float32)}))


def make_trainer(directory: Path, pause_after: int) -> Trainer:
    # Defined here, so that it reaches the worker by value: tests are no package.
    class Endless:
        layout = LAYOUT

        def pop(self, timeout_s: float | None = None) -> Packed:
            return Packed(LAYOUT, LAYOUT.empty(2))

    class Counting(Trainer):
        def loss(self, batch: Any, step: int) -> tuple[torch.Tensor, dict[str, Any]]:
            return self.module(batch["x"]).square().mean(), {}

        def should_pause(self) -> bool:
            return self.replays >= pause_after

    config = TrainerConfig(checkpoint_every=5)
    return Counting(nn.Linear(3, 1), Endless(), config=config, directory=directory)  # type: ignore[arg-type]


def test_it_trains_in_another_process(tmp_path: Path) -> None:
    from bray_trainer.remote import RemoteTrainer

    trainer = RemoteTrainer("small", lambda: make_trainer(tmp_path, 20), num_cpus=0)
    try:
        trainer.start()
        assert trainer.wait(60)
        assert trainer.progress()["replays"] == 20
        assert any(sample.name == "trainer/loss" for sample in trainer.drain_metrics())
        trainer.stop()
    finally:
        trainer.close()


def test_a_killed_trainer_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    from bray_trainer.remote import RemoteTrainer

    trainer = RemoteTrainer("mortal-trainer", lambda: make_trainer(tmp_path, 3000), num_cpus=0)
    try:
        trainer.start()
        while not list(tmp_path.glob("replay-*.pt")):
            assert not trainer.wait(0.1)
        (pid,) = trainer._pool.pids()
        os.kill(pid, signal.SIGKILL)
        assert trainer.wait(100)
        assert trainer.progress()["replays"] == 3000
        assert trainer._pool.pids() != [pid]
    finally:
        trainer.close()
