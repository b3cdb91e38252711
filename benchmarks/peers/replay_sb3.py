"""Stable-Baselines3's replay (uniform only), measured by `replay_loop`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from replay_loop import BATCH, CHUNK, SHAPES, Chunk, measure
from stable_baselines3.common.buffers import ReplayBuffer


class Sb3:
    """A chunk is one step of 64 environments, its quickest way in."""

    def __init__(self, capacity: int, observation: str, prioritized: bool) -> None:
        shape, dtype = SHAPES[observation]
        space = spaces.Box(0, 255, shape, dtype)
        self.buffer = ReplayBuffer(
            capacity,
            space,
            spaces.Discrete(4),
            device="cpu",
            n_envs=CHUNK,
            handle_timeout_termination=False,
        )

    def insert(self, chunk: Chunk) -> None:
        """Add 64 transitions."""
        self.buffer.add(
            chunk.observation, chunk.next_observation, chunk.action, chunk.reward, chunk.done, []
        )

    def sample(self) -> Any:
        """Draw 256."""
        return self.buffer.sample(BATCH)

    def update(self, batch: Any, priorities: np.ndarray) -> None:
        """There are no priorities."""
        raise NotImplementedError


torch.set_num_threads(1)
measure(Sb3, "sb3", has_priorities=False)
