"""Reverb, measured by `replay_loop`, with its server in this process.

The server listens on all interfaces: run it where loopback is the only one, such as in a network
namespace (`unshare -n`, then `ip link set lo up`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import reverb
from replay_loop import ALPHA, BATCH, Chunk, measure

LEAVES = ("observation", "next_observation", "action", "reward", "done")


class Reverb:
    """One item a transition."""

    def __init__(self, capacity: int, observation: str, prioritized: bool) -> None:
        selectors = reverb.selectors
        table = reverb.Table(
            name="replay",
            sampler=selectors.Prioritized(ALPHA) if prioritized else selectors.Uniform(),
            remover=selectors.Fifo(),
            max_size=capacity,
            rate_limiter=reverb.rate_limiters.MinSize(1),
        )
        self.server = reverb.Server([table])
        self.client = reverb.Client(f"127.0.0.1:{self.server.port}")
        self.writer = self.client.trajectory_writer(num_keep_alive_refs=1)

    def insert(self, chunk: Chunk) -> None:
        """Add 64 transitions."""
        for row in range(len(chunk.action)):
            self.writer.append({name: getattr(chunk, name)[row] for name in LEAVES})
            history = self.writer.history
            self.writer.create_item("replay", 1.0, {name: history[name][-1:] for name in LEAVES})
        self.writer.flush()

    def sample(self) -> Any:
        """Draw 256."""
        items = list(self.client.sample("replay", BATCH, emit_timesteps=False))
        leaves = [np.concatenate([item.data[at] for item in items]) for at in range(len(LEAVES))]
        return leaves, [item.info.key for item in items]

    def update(self, batch: Any, priorities: np.ndarray) -> None:
        """Give a batch new priorities."""
        updates = dict(zip(batch[1], priorities.tolist(), strict=True))
        self.client.mutate_priorities("replay", updates)


measure(Reverb, "reverb")
