"""On Ray a simulator in lockstep stands still while its trainer trains, as in a local run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np

from bray.sources.config import GamecoreSourceConfig, ServingActorConfig
from bray.sources.gamecores import WorkerActors
from bray.sources.wire.gamecore_play import GamecorePlay
from bray_actor import PolicyConfig, segment_spec
from bray_buffer import Buffer, BufferConfig
from bray_core import codec
from bray_core.layout import Layout
from bray_core.nested import ArraySpec
from bray_core.protocols import Answer
from bray_core.spaces import Spaces

LANES, STEPS = 3, 6
SPACES = Spaces.parse("test", {"observation": {"shape": [2]}, "action": {"discrete": 2}})
LAYOUT = Layout(segment_spec(ArraySpec(np.dtype("f4"), (2,)), ArraySpec(np.dtype("i8"), ()), 8))


class Versions:
    """A model that a test publishes to."""

    def __init__(self) -> None:
        self.version = 0
        self._changed = asyncio.Event()

    async def infer(self, *inputs: Any, batch: bool = False) -> Answer:
        rows = len(inputs[0])
        outputs = {"logits": np.zeros((rows, 2), np.float32), "value": np.zeros(rows, np.float32)}
        return Answer(outputs, self.version)

    def publish(self) -> None:
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_version(self, version: int, timeout_s: float | None = None) -> int:
        while self.version < version:
            await self._changed.wait()
        return self.version


async def test_sessions_that_are_ticked_one_after_the_other_play_each_version(
    tmp_path: Path,
) -> None:
    play = GamecorePlay(
        source=GamecoreSourceConfig(external=True, lanes=LANES),
        actor=ServingActorConfig(),
        policy=PolicyConfig(spaces=SPACES.described()),
        steps_per_version=STEPS,
        spaces=SPACES,
    )
    model: Any = Versions()
    buffer = Buffer(LAYOUT, BufferConfig(batch_steps=STEPS, capacity=64))
    worker = WorkerActors(play, model, buffer, tmp_path, 0)
    body = codec.encode({"observation": np.zeros(2, np.float32), "reward": 1.0})
    ticks = 0

    async def simulate() -> None:
        nonlocal ticks
        actors: list[Any] = [worker(f"{lane}/0") for lane in range(LANES)]
        for actor in actors:
            await actor.start(b"")
        while True:
            for actor in actors:
                await actor.tick(body)
                ticks += 1

    simulating = asyncio.create_task(simulate())
    for _ in range(4):
        await asyncio.to_thread(buffer.pop, 20)
        played = ticks
        await asyncio.sleep(0.25)  # the trainer trains
        assert ticks - played <= 1
        model.publish()
    simulating.cancel()
    await asyncio.gather(simulating, return_exceptions=True)


def test_the_shares_of_all_workers_add_up_to_the_steps_of_a_version() -> None:
    for workers, steps in ((1, 7), (3, 8), (4, 6)):
        play = GamecorePlay(
            source=GamecoreSourceConfig(external=True, lanes=LANES),
            actor=ServingActorConfig(num_workers=workers),
            policy=PolicyConfig(spaces=SPACES.described()),
            steps_per_version=steps,
            spaces=SPACES,
        )
        assert sum(map(play.steps_of_worker, range(workers))) == steps
