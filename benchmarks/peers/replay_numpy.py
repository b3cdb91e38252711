"""The least that a replay in numpy can do: one array a leaf, no lock, no checks, no copies saved.

Prioritized: one cumulative sum over all items, computed anew after a change.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from replay_loop import ALPHA, BATCH, BETA, CHUNK, SHAPES, Chunk, measure

LEAVES = ("observation", "next_observation", "action", "reward", "done")


class Ring:
    """Arrays `[capacity, …]`; the chunks fit in without a rest."""

    def __init__(self, capacity: int, observation: str, prioritized: bool) -> None:
        shape, dtype = SHAPES[observation]
        self.capacity = capacity // CHUNK * CHUNK
        self.arrays = [
            np.zeros((self.capacity, *shape), dtype),
            np.zeros((self.capacity, *shape), dtype),
            np.zeros(self.capacity, np.int64),
            np.zeros(self.capacity, np.float32),
            np.zeros(self.capacity, bool),
        ]
        self.at = 0
        self.random = np.random.default_rng(0)
        self.priorities = np.zeros(self.capacity) if prioritized else None
        self.sums: np.ndarray | None = None

    def insert(self, chunk: Chunk) -> None:
        """Add 64 transitions."""
        for array, name in zip(self.arrays, LEAVES, strict=True):
            array[self.at : self.at + CHUNK] = getattr(chunk, name)
        if self.priorities is not None:
            self.priorities[self.at : self.at + CHUNK] = 1.0
            self.sums = None
        self.at = (self.at + CHUNK) % self.capacity

    def sample(self) -> Any:
        """Draw 256."""
        if self.priorities is None:
            index = self.random.integers(self.capacity, size=BATCH)
            return [array[index] for array in self.arrays]
        if self.sums is None:
            self.sums = self.priorities.cumsum()
        index = self.sums.searchsorted(self.random.random(BATCH) * self.sums[-1])
        weights = (self.priorities[index] / self.sums[-1] * self.capacity) ** -BETA
        batch = [array[index] for array in self.arrays]
        return [*batch, weights / weights.max(), index]

    def update(self, batch: Any, priorities: np.ndarray) -> None:
        """Give a batch new priorities."""
        assert self.priorities is not None
        self.priorities[batch[-1]] = priorities**ALPHA
        self.sums = None


measure(Ring, "numpy")
