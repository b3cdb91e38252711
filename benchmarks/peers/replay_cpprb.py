"""cpprb (C++), measured by `replay_loop`."""

from __future__ import annotations

from typing import Any

import cpprb
import numpy as np
from replay_loop import ALPHA, BATCH, BETA, SHAPES, Chunk, measure


class Cpprb:
    """The buffers as its documentation makes them, each leaf stored as it comes."""

    def __init__(self, capacity: int, observation: str, prioritized: bool) -> None:
        shape, dtype = SHAPES[observation]
        leaves: dict[str, Any] = {
            "obs": {"shape": shape, "dtype": dtype},
            "next_obs": {"shape": shape, "dtype": dtype},
            "act": {"dtype": np.int64},
            "rew": {"dtype": np.float32},
            "done": {"dtype": bool},
        }
        self.prioritized = prioritized
        if prioritized:
            self.buffer = cpprb.PrioritizedReplayBuffer(capacity, leaves, alpha=ALPHA)
        else:
            self.buffer = cpprb.ReplayBuffer(capacity, leaves)

    def insert(self, chunk: Chunk) -> None:
        """Add 64 transitions."""
        self.buffer.add(
            obs=chunk.observation,
            next_obs=chunk.next_observation,
            act=chunk.action,
            rew=chunk.reward,
            done=chunk.done,
        )

    def sample(self) -> Any:
        """Draw 256."""
        return self.buffer.sample(BATCH, BETA) if self.prioritized else self.buffer.sample(BATCH)

    def update(self, batch: Any, priorities: np.ndarray) -> None:
        """Give a batch new priorities."""
        self.buffer.update_priorities(batch["indexes"], priorities)


measure(Cpprb, "cpprb")
