"""Models and buffers for the tests of several agents."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import numpy as np

from bray_actor.multi_agent.environment import MultiAgentEnvironment
from bray_actor.segment import segment_spec
from bray_core import nested
from bray_core.action_vector import ActionVector, step_specs
from bray_core.layout import Layout, Packed
from bray_core.protocols import Answer
from bray_core.spaces import Spaces


class Hashing:
    """A policy whose logits or means follow from a row's bytes alone; masks what is not allowed.

    Args:
        spaces: What it sees and may do.
        state_size: Numbers of its state, which counts the steps.
    """

    def __init__(self, spaces: Spaces, state_size: int = 0) -> None:
        self._actions = ActionVector(spaces.action)
        self._state_size = state_size
        self.version = 1
        self.sizes: list[int] = []
        self.changed = asyncio.Event()

    async def infer(self, *inputs: Any, batch: bool = False) -> Answer:
        assert batch
        await asyncio.sleep(0)
        leaves = [leaf for _, leaf in nested.items(inputs)]
        self.sizes.append(len(leaves[0]))
        rows = [self._row([leaf[k] for leaf in leaves]) for k in range(len(leaves[0]))]
        numbers = np.stack(rows)
        outputs: dict[str, Any] = {"value": numbers[:, 0] * 0.5}
        if self._actions.is_one:
            logits = numbers[:, : self._actions.sizes[0]].copy()
            seen = inputs[0]
            if isinstance(seen, dict) and "action_mask" in seen:
                logits[seen["action_mask"] == 0] = -1e9
            outputs["logits"] = logits
        else:
            outputs["mean"] = numbers[:, : self._actions.num_reals]
            outputs["log_std"] = np.zeros_like(outputs["mean"])
        if self._state_size:
            outputs["state"] = inputs[1] + 1
        return Answer(outputs, self.version)

    def _row(self, leaves: list[Any]) -> Any:
        data = b"".join(np.ascontiguousarray(leaf).tobytes() for leaf in leaves)
        digest = hashlib.sha256(data + bytes([self.version])).digest() * 4
        return np.frombuffer(digest, np.uint8).astype(np.float32) / 128 - 1

    async def wait_version(self, version: int, timeout_s: float | None = None) -> int:
        while self.version < version:
            await self.changed.wait()
            self.changed.clear()
        return self.version

    def publish(self) -> None:
        self.version += 1
        self.changed.set()


class Kept:
    """A buffer that keeps the trees of all segments."""

    def __init__(
        self, spaces: Spaces, length: int = 4, *, state_size: int = 0, discounted: bool = False
    ) -> None:
        spec = segment_spec(
            *step_specs(spaces), length, state_size=state_size, discounted=discounted
        )
        self.layout = Layout(spec)
        self.trees: list[Any] = []

    def push(self, *segments: Packed, wait: bool = False, timeout_s: float | None = None) -> int:
        self.trees += [self.layout.views(segment.block.copy()) for segment in segments]
        return len(segments)

    @property
    def num_steps(self) -> int:
        return sum(int(tree["length"]) for tree in self.trees)


def first_spaces(environment: MultiAgentEnvironment) -> Spaces:
    return environment.spaces(environment.agents[0])
