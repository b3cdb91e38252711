"""TorchRL's replay, measured by `replay_loop`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from replay_loop import ALPHA, BATCH, BETA, CHUNK, Chunk, measure
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import PrioritizedSampler, RandomSampler


class TorchRL:
    """Tensors in memory, a chunk at a time."""

    def __init__(self, capacity: int, observation: str, prioritized: bool) -> None:
        sampler = PrioritizedSampler(capacity, ALPHA, BETA) if prioritized else RandomSampler()
        self.buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(capacity), sampler=sampler, batch_size=BATCH
        )

    def insert(self, chunk: Chunk) -> None:
        """Add 64 transitions."""
        leaves = {
            "observation": torch.from_numpy(chunk.observation),
            "next_observation": torch.from_numpy(chunk.next_observation),
            "action": torch.from_numpy(chunk.action),
            "reward": torch.from_numpy(chunk.reward),
            "done": torch.from_numpy(chunk.done),
        }
        self.buffer.extend(TensorDict(leaves, [CHUNK]))

    def sample(self) -> Any:
        """Draw 256."""
        return self.buffer.sample()

    def update(self, batch: Any, priorities: np.ndarray) -> None:
        """Give a batch new priorities."""
        self.buffer.update_priority(batch["index"], torch.from_numpy(priorities).float())


torch.set_num_threads(1)
measure(TorchRL, "torchrl")
