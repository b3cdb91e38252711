"""Two ranks on Ray: one is killed, and both go on from the newest checkpoint."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bray_core import metrics, nested
from bray_core.errors import ConfigError
from bray_core.layout import Layout, Packed
from bray_trainer import Trainer, TrainerConfig
from bray_trainer.distributed import ranks

pytestmark = pytest.mark.ray

LAYOUT = Layout(nested.spec({"x": np.zeros(3, np.float32)}))


def make_trainer(directory: Path) -> Trainer:
    # Defined here, so that it reaches the worker by value: tests are no package.
    class Numbers:
        """Without end; each rank's shard has numbers of its own."""

        layout = LAYOUT
        rank = -1

        def shard(self, rank: int, size: int) -> Numbers:
            assert (rank, size) == (ranks.Ranks.current().rank, ranks.Ranks.current().size)
            self.rank = rank
            return self

        def pop(self, timeout_s: float | None = None) -> Packed:
            rows = LAYOUT.pack({"x": np.full((2 + self.rank, 3), 1 + self.rank, np.float32)})
            return Packed(LAYOUT, rows)

    class Counting(Trainer):
        goal = 0
        highest = 0.0

        def loss(self, batch: Any, step: int) -> tuple[torch.Tensor, dict[str, Any]]:
            if self.goal < 0 and self.ranks.rank == 1:
                raise ValueError("my fault")
            return self.module(batch["x"]).square().mean(), {}

        def should_pause(self) -> bool:
            return self.goal >= 0 and self.replays >= self.goal

        def set_goal(self, goal: int) -> int:
            self.goal = goal
            return self.replays

        def finish_replay(self) -> None:
            self.highest = max(self.highest, float(self.module.weight.max()))

        def highest_weight(self) -> float:
            return self.highest

        def weights(self) -> tuple[int, list[float]]:
            return self.replays, self.module.weight.tolist()

        def state_dict(self) -> dict[str, Any]:
            return {"goal": self.goal}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.goal = state["goal"]

    config = TrainerConfig(checkpoint_every=5)
    return Counting(nn.Linear(3, 1), Numbers(), config=config, directory=directory)  # type: ignore[arg-type]


@pytest.fixture
def make(ray_cluster: None, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    from bray_trainer.remote import RemoteTrainer

    made: list[Any] = []

    def make(**options: Any) -> Any:
        made.append(RemoteTrainer("pair", lambda: make_trainer(tmp_path), num_cpus=0, **options))
        return made[-1]

    yield make
    for trainer in made:
        trainer.close()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_two_ranks_survive_the_loss_of_either(make: Callable[..., Any]) -> None:
    trainer = make(num_workers=2, rank_timeout_s=20)
    trainer.call("set_goal", 20)
    trainer.start()
    assert trainer.wait(60)
    (replays, weights), other = trainer.call_all("weights")
    assert (replays, other) == (20, (20, weights)), "to the bit, though their samples differ"
    assert trainer.progress()["replays"] == 20

    trainer.call("set_goal", 10**9)
    trainer.start()
    before = random.randrange(40, 80)
    while trainer.progress()["replays"] < before:
        assert not trainer.wait(0.02)
    pids = trainer._pool.pids()
    metrics.drain()
    os.kill(random.choice(pids), signal.SIGKILL)  # rank 0's keeps the store of the group
    while trainer.progress()["replays"] <= before + 100:
        assert not trainer.wait(0.2)
    assert not set(pids) & set(trainer._pool.pids()), "both have begun again"
    counts = {sample.name: sample.total for sample in metrics.drain()}
    assert counts["trainer/restarts"] == 1
    trainer.call("set_goal", 0)
    assert trainer.wait(60)
    first, second = trainer.call_all("weights")
    assert first == second

    trainer.call("set_goal", 10**9)
    trainer.start()
    assert not trainer.wait(0.05)
    trainer.stop()
    assert trainer.wait(0)
    first, second = trainer.call_all("weights")
    assert first == second, "both stopped at the same replay"
    trainer.call("set_goal", -1)
    trainer.start()
    with pytest.raises(ValueError, match="my fault"):  # of rank 1, though rank 0 failed too
        trainer.wait(60)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_ranks_begin_anew_where_one_is_back_before_its_loss_is_noticed(
    make: Callable[..., Any],
) -> None:
    trainer = make(num_workers=2, rank_timeout_s=20)
    trainer.call("set_goal", 10**9)
    trainer.start()
    while trainer.progress()["replays"] < 10:
        assert not trainer.wait(0.02)
    os.kill(trainer._pool.pids()[1], signal.SIGKILL)
    trainer._pool.wait_ready(60)
    anew = {"weight": np.full((1, 3), 50, np.float32), "bias": np.zeros(1, np.float32)}
    trainer.begin_anew(anew)
    reached = trainer.progress()["replays"]
    assert not trainer.wait(0.02)
    while trainer._lost_at is not None or trainer.progress()["replays"] < reached + 20:
        assert not trainer.wait(0.02)
    assert min(trainer.call_all("highest_weight")) > 10
    trainer.stop()


def test_nonsense_is_refused(make: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="rank_timeout_s: expected more than 0, got 0"):
        make(rank_timeout_s=0)
    with pytest.raises(ConfigError, match="backend: expected 'gloo' or 'nccl', got 'mpi'"):
        make(backend="mpi")
    with pytest.raises(ConfigError, match="num_workers: expected 1 or more, got 0"):
        make(num_workers=0)
