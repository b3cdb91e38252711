"""Two ranks take batches from two buffer workers' shared memory, and one is killed with some."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bray_core import nested
from bray_core.layout import Layout

pytestmark = [pytest.mark.ray, pytest.mark.long]

LAYOUT = Layout(nested.spec({"x": np.zeros((8, 3), np.float32)}))


def make_trainer(buffer: Any, directory: Path) -> Any:
    from bray_trainer import Trainer, TrainerConfig  # by value: tests are no package

    class Learner(Trainer):
        def loss(self, batch: Any, step: int) -> tuple[torch.Tensor, dict[str, Any]]:
            return self.module(batch["x"]).square().mean(), {}

        def should_pause(self) -> bool:
            return (directory / "pause").exists()

        def workers(self) -> tuple[int, ...]:
            return tuple(next(iter(self._buffers.values()))._own)

    config = TrainerConfig(checkpoint_every=5, prefetch=2)
    return Learner(nn.Linear(3, 1), buffer, config=config, directory=directory)


@pytest.mark.timeout(240)
def test_a_killed_rank_gives_its_batches_back(ray_cluster: None, tmp_path: Path) -> None:
    from bray_buffer import BufferConfig
    from bray_buffer.remote import RemoteBuffer
    from bray_trainer.remote import RemoteTrainer

    config = BufferConfig(batch_size=2, capacity=4, when_full="block")
    buffer = RemoteBuffer("shards", LAYOUT, config, num_workers=2)
    trainer = RemoteTrainer(
        "ranks", lambda: make_trainer(buffer, tmp_path), num_workers=2, rank_timeout_s=20
    )
    segment = {"x": np.ones((8, 3), np.float32)}
    ended = threading.Event()

    def produce() -> None:
        while not ended.is_set():
            try:
                buffer.push(segment, wait=True, timeout_s=0.1)
            except TimeoutError:
                continue

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        assert trainer.call_all("workers") == [(0,), (1,)]
        trainer.start()
        while trainer.progress()["replays"] < 10:
            assert not trainer.wait(0.05)
        os.kill(trainer._pool.pids()[1], signal.SIGKILL)
        reached = trainer.progress()["replays"]
        while trainer.progress()["replays"] < reached + 20:  # each worker's six slots many times
            assert not trainer.wait(0.2)
        (tmp_path / "pause").touch()
        assert trainer.wait(60)
    finally:
        ended.set()
        producer.join()
        trainer.close()
        stats = buffer.stats()
        buffer.close()
    assert 0 <= stats["lost"] <= 2 * 3 * 2, "the batches that both ranks held when they were ended"
