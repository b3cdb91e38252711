"""bray-buffer's replay of transitions, measured by `replay_loop`."""

from __future__ import annotations

from typing import Any

import numpy as np
from replay_loop import ALPHA, BATCH, BETA, Chunk, measure

from bray_buffer import ReplayBuffer, ReplayConfig
from bray_core import nested


def segment(chunk: Chunk) -> dict[str, np.ndarray]:
    """Return a chunk as a segment."""
    return {
        "observation": chunk.observation,
        "action": chunk.action,
        "reward": chunk.reward,
        "terminated": chunk.done,
        "final_observation": chunk.observations[-1],
    }


class Bray:
    """A batch is one block; `tree` makes its leaves."""

    def __init__(self, capacity: int, observation: str, prioritized: bool) -> None:
        config = ReplayConfig(
            unit="transition",
            capacity=capacity,
            batch_size=BATCH,
            sampler="prioritized" if prioritized else "uniform",
            alpha=ALPHA,
            beta=BETA,
        )
        self.replay = ReplayBuffer(nested.spec(segment(Chunk(observation, 0))), config)

    def insert(self, chunk: Chunk) -> None:
        """Add 64 transitions."""
        self.replay.push(segment(chunk))

    def insert_all(self, chunks: list[Chunk]) -> None:
        """Add several chunks in one push."""
        self.replay.push(*map(segment, chunks))

    def sample(self) -> Any:
        """Draw 256."""
        return self.replay.pop().tree

    def update(self, batch: Any, priorities: np.ndarray) -> None:
        """Give a batch new priorities."""
        self.replay.update_priorities(batch["key"], priorities)


measure(Bray, "bray")
