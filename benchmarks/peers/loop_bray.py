"""bray's `Runner` on environments that cost nothing, asking a model that costs nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from loop_environment import Trivial, options, rate, show

from bray_actor import Runner, segment_spec
from bray_actor.environments.serial import SerialEnvironments
from bray_core.layout import Layout
from bray_core.nested import ArraySpec
from bray_core.protocols import Answer

STEPS = 64


class Constant:
    """A model whose answer never changes."""

    version = 1

    def __init__(self, num_envs: int) -> None:
        outputs = {"logits": np.zeros((num_envs, 2), np.float32)}
        self._answer = Answer({**outputs, "value": np.zeros(num_envs, np.float32)}, 1)

    async def infer(self, *inputs: Any, **options: Any) -> Answer:
        """Answer."""
        return self._answer


class Dropped:
    """A buffer that drops what it gets."""

    layout = Layout(
        segment_spec(
            ArraySpec(np.dtype(np.float32), (4,)), ArraySpec(np.dtype(np.int64), ()), STEPS
        )
    )

    def push(self, *segments: Any, wait: bool = False, timeout_s: float | None = None) -> int:
        """Count."""
        return len(segments)


def main() -> None:
    """Measure the vector alone and the loop around it."""
    given = options()
    environment = SerialEnvironments([Trivial] * given.num_envs)
    environment.reset(seed=0)
    actions = np.zeros(given.num_envs, np.int64)
    stepping = rate(lambda: environment.step(actions), given.num_envs, given.seconds)
    environments: Any = SerialEnvironments([Trivial] * given.num_envs)
    model: Any = Constant(given.num_envs)
    buffer: Any = Dropped()
    runner = Runner(environments, model, buffer)
    loop = asyncio.new_event_loop()
    collect = rate(
        lambda: loop.run_until_complete(runner.run(STEPS)), STEPS * given.num_envs, given.seconds
    )
    show(stepping=stepping, loop=collect)


main()
