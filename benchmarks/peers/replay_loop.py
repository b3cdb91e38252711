"""The loop that every replay is measured by: same data, same chunks, same batches.

A peer's script makes a `Replay` and calls `measure(Replay, name)`; it prints one JSON line.

    python replay_<peer>.py --observation vector|image --capacity 100000 --seconds 1
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

BATCH = 256
CHUNK = 64
NUM_CHUNKS = 16
SHAPES = {"vector": ((8,), np.float32), "image": ((84, 84), np.uint8)}
ALPHA, BETA = 0.6, 0.4


class Chunk:
    """Transitions that follow each other: `observation` has one more, the last one's next."""

    def __init__(self, observation: str, seed: int) -> None:
        random = np.random.default_rng(seed)
        shape, dtype = SHAPES[observation]
        self.observations = random.integers(0, 255, (CHUNK + 1, *shape)).astype(dtype)
        self.observation = np.ascontiguousarray(self.observations[:-1])
        self.next_observation = np.ascontiguousarray(self.observations[1:])
        self.action = random.integers(0, 4, CHUNK)
        self.reward = random.random(CHUNK).astype(np.float32)
        self.done = np.zeros(CHUNK, bool)
        self.done[-1] = True


class Replay(Protocol):
    """What a peer has to do."""

    def __init__(self, capacity: int, observation: str, prioritized: bool) -> None: ...

    def insert(self, chunk: Chunk) -> None:
        """Add 64 transitions."""
        ...

    def sample(self) -> Any:
        """Draw 256 transitions: observation, next observation, action, reward, done."""
        ...

    def update(self, batch: Any, priorities: np.ndarray) -> None:
        """Give a batch new priorities."""
        ...


def rate(call: Callable[[], object], per_call: int, seconds: float) -> float:
    """Return items per second: the best of twenty stretches, since other work only slows."""
    call()
    rates = []
    for _ in range(20):
        calls, began = 0, time.perf_counter()
        while (took := time.perf_counter() - began) < seconds / 20:
            for _ in range(5):
                call()
            calls += 5
        rates.append(calls * per_call / took)
    return max(rates)


def insert_all(replay: Any, chunks: list[Chunk]) -> None:
    """Add 16 chunks, at once where a replay can."""
    if hasattr(replay, "insert_all"):
        replay.insert_all(chunks)
        return
    for chunk in chunks:
        replay.insert(chunk)


def cells(replay: Any, chunks: list[Chunk], capacity: int, seconds: float) -> dict[str, float]:
    """Fill a replay twice round, then measure inserts and samples."""
    for number in range(2 * capacity // CHUNK):
        replay.insert(chunks[number % NUM_CHUNKS])
    turn = iter(range(10**9))
    return {
        "insert": rate(lambda: replay.insert(chunks[next(turn) % NUM_CHUNKS]), CHUNK, seconds),
        "insert of 16": rate(lambda: insert_all(replay, chunks), NUM_CHUNKS * CHUNK, seconds),
        "sample": rate(replay.sample, BATCH, seconds),
    }


def measure(kind: Any, name: str, has_priorities: bool = True) -> None:
    """Measure as the command line says and print one JSON line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--observation", choices=sorted(SHAPES), default="vector")
    parser.add_argument("--capacity", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    chunks = [Chunk(options.observation, seed) for seed in range(NUM_CHUNKS)]
    replay = kind(options.capacity, options.observation, prioritized=False)
    uniform = cells(replay, chunks, options.capacity, options.seconds)
    figures: dict[str, Any] = {f"uniform {cell}": value for cell, value in uniform.items()}
    del replay
    try:
        if has_priorities:
            figures |= prioritized(kind, chunks, options)
    except (
        RuntimeError,
        TypeError,
        ValueError,
        AttributeError,
    ) as error:  # a peer that does not run here is a line of the table
        figures["error"] = f"prioritized: {type(error).__name__}: {error}"[:200]
    print(json.dumps({"peer": name, "observation": options.observation, **figures}), flush=True)


def prioritized(kind: Any, chunks: list[Chunk], options: argparse.Namespace) -> dict[str, float]:
    """Return the figures of a prioritized replay."""
    replay = kind(options.capacity, options.observation, prioritized=True)
    priorities = np.random.default_rng(0).random(BATCH) + 0.1
    figures = cells(replay, chunks, options.capacity, options.seconds)
    update = rate(lambda: replay.update(replay.sample(), priorities), BATCH, options.seconds)
    named = {f"prioritized {cell}": value for cell, value in figures.items()}
    return named | {"prioritized update": update}
