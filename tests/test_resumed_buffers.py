"""A trainer with bray's own buffers: cut off at any replay, it has the losses of a whole run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bray_buffer import Buffer, BufferConfig, ReplayBuffer, ReplayConfig
from bray_buffer.sources import SourceBuffer, SourceConfig
from bray_core import nested
from bray_core.errors import FormatError
from bray_core.layout import Packed
from bray_trainer import Trainer, TrainerConfig

REPLAYS = 6
RNG = np.random.default_rng(0)
SAMPLES = [{"x": RNG.normal(size=(4, 3)).astype("f4")} for _ in range(30)]
SPEC = nested.spec(SAMPLES[0])


class CutOff(Exception):
    """What ends a run in the middle; like a kill, it lets nothing be written."""


class Sum(Trainer):
    """Learns the sum of numbers; gives a prioritized replay its errors."""

    losses: tuple[float, ...] = ()
    cut_at = -1

    def handle(self, replay: Packed) -> Any:
        if self.replays == self.cut_at:
            raise CutOff
        yield from super().handle(replay)

    def loss(self, batch: Any, step: int) -> tuple[torch.Tensor, dict[str, float]]:
        error = (self.module(batch["x"])[..., 0] - batch["x"].sum(-1)).square().mean(1)
        if "key" in batch:
            self.buffer.update_priorities(batch["key"].numpy(), error.detach().numpy())  # type: ignore[union-attr]
            error = error * batch["weight"]
        self.losses = (*self.losses, error.mean().item())
        return error.mean(), {}

    def should_pause(self) -> bool:
        return self.replays >= REPLAYS

    def state_dict(self) -> dict[str, Any]:
        return {"losses": self.losses}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.losses = state["losses"]


def trainer(buffer: Any, directory: Path | None, prefetch: int) -> Sum:
    torch.manual_seed(0)
    config = TrainerConfig(
        seed=1,
        checkpoint_every=2,
        learning_rate=0.01,
        prefetch=prefetch,
        checkpoint_buffers=not isinstance(buffer, SourceBuffer),  # that one has a cursor alone
    )
    return Sum(nn.Linear(3, 1), buffer, config=config, directory=directory)


def finished(one: Sum) -> tuple[float, ...]:
    one.start()
    assert one.wait(60)
    return one.losses


def source() -> SourceBuffer:
    return SourceBuffer(SAMPLES, SourceConfig(batch_size=8, epochs=4, shuffle=True, seed=3))


def queue() -> Buffer:
    return Buffer(SPEC, BufferConfig(batch_size=8, capacity=100))


def uniform() -> ReplayBuffer:
    return ReplayBuffer(SPEC, ReplayConfig(capacity=100, batch_size=8, seed=2))


def prioritized() -> ReplayBuffer:
    config = ReplayConfig(capacity=100, batch_size=8, seed=2, sampler="prioritized")
    return ReplayBuffer(SPEC, config)


@pytest.mark.parametrize(
    ("make", "prefetch"),
    [(source, 0), (source, 2), (queue, 2), (uniform, 1), (prioritized, 0)],
)
def test_exact_resume(make: Callable[[], Any], prefetch: int, tmp_path: Path) -> None:
    def full() -> Any:
        buffer = make()
        if make is not source:
            buffer.push(*SAMPLES, *SAMPLES)
        return buffer

    whole = finished(trainer(full(), None, prefetch))
    assert len(set(whole)) == REPLAYS
    for cut_at in range(REPLAYS):
        directory = tmp_path / str(cut_at)
        cut = trainer(full(), directory, prefetch)
        cut.cut_at = cut_at
        with pytest.raises(CutOff):
            cut.run(REPLAYS)
        written = cut_at >= 2
        assert finished(trainer(make() if written else full(), directory, prefetch)) == whole


def test_a_buffer_of_a_newer_format_is_refused_with_its_checkpoint(tmp_path: Path) -> None:
    """The checkpoint before would be read, and what was trained since be lost without a word."""
    full = queue()
    full.push(*SAMPLES, *SAMPLES)
    trainer(full, tmp_path, 0).run(4)
    newest = max(tmp_path.glob("*.pt")).stem
    (file,) = tmp_path.glob(f"{newest}-*/buffer-0")
    file.write_bytes(file.read_bytes().replace(b'"format": 2', b'"format": 9', 1))
    with pytest.raises(FormatError, match="has format 9, this version reads up to 2"):
        trainer(queue(), tmp_path, 0).run(1)
