"""Tianshou's replay, measured by `replay_loop`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from replay_loop import ALPHA, BATCH, BETA, CHUNK, Chunk, measure
from tianshou.data import Batch, PrioritizedVectorReplayBuffer, VectorReplayBuffer


class Tianshou:
    """A chunk is one step of 64 environments, its quickest way in."""

    def __init__(self, capacity: int, observation: str, prioritized: bool) -> None:
        self.ids = np.arange(CHUNK)
        self.truncated = np.zeros(CHUNK, bool)
        if prioritized:
            self.buffer: Any = PrioritizedVectorReplayBuffer(
                capacity, CHUNK, alpha=ALPHA, beta=BETA
            )
        else:
            self.buffer = VectorReplayBuffer(capacity, CHUNK)

    def insert(self, chunk: Chunk) -> None:
        """Add 64 transitions."""
        batch = Batch(
            obs=chunk.observation,
            obs_next=chunk.next_observation,
            act=chunk.action,
            rew=chunk.reward,
            terminated=chunk.done,
            truncated=self.truncated,
            info=Batch(),
        )
        self.buffer.add(batch, self.ids)

    def sample(self) -> Any:
        """Draw 256."""
        return self.buffer.sample(BATCH)

    def update(self, batch: Any, priorities: np.ndarray) -> None:
        """Give a batch new priorities."""
        self.buffer.update_weight(batch[1], priorities)


torch.set_num_threads(1)
measure(Tianshou, "tianshou")
