"""A replay in a process of its own: `RemoteBuffer` beside a numpy ring in a Ray actor, and Reverb.

    uv run python -m benchmarks.micro.buffer_remote [--rounds N] [--seconds S] [--reverb]

One node. Capacity 100,000 steps, batches of 256 transitions (observation, action, reward,
discount, next_observation); observations of 8 float32 and of 84×84 uint8; a process inserts
segments of 64 steps while another samples, or each alone. Every sampled batch is complete in the
consumer's memory. `+ update`: prioritised, with new priorities for each batch.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
import uuid
from argparse import Namespace
from collections.abc import Callable
from typing import Any

os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"


import numpy as np
import ray
from benchmarks.harness import Report, argument, main
from benchmarks.micro import buffer_replay

from bray_buffer import ReplayConfig
from bray_buffer.remote import RemoteBuffer
from bray_core import nested
from bray_core.layout import Layout, Packed
from bray_core.remote.cluster import init_ray, shutdown_ray

CAPACITY = 100_000
BATCH = 256
STEPS = 64
OBSERVATIONS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "8 float32": (np.float32, (8,)),
    "84x84 uint8": (np.uint8, (84, 84)),
}


def segment(dtype: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    """Return a segment of random steps."""
    rng = np.random.default_rng(0)
    return {
        "observation": (255 * rng.random((STEPS, *shape))).astype(dtype),
        "final_observation": np.zeros(shape, dtype),
        "action": rng.integers(0, 4, STEPS),
        "reward": rng.random(STEPS, np.float32),
        "terminated": np.zeros(STEPS, bool),
    }


class Ring:
    """A numpy ring as one writes it, in a Ray actor."""

    def __init__(self, dtype: Any, shape: tuple[int, ...]) -> None:
        self._leaves = {
            "observation": np.zeros((CAPACITY, *shape), dtype),
            "next_observation": np.zeros((CAPACITY, *shape), dtype),
            "action": np.zeros(CAPACITY, np.int64),
            "reward": np.zeros(CAPACITY, np.float32),
            "discount": np.zeros(CAPACITY, np.float32),
        }
        self._at = self._size = 0
        self._random = np.random.default_rng(0)

    def insert(self, chunk: dict[str, Any]) -> None:
        """Write a chunk of transitions."""
        count = len(chunk["action"])
        index = (self._at + np.arange(count)) % CAPACITY
        for name, leaf in self._leaves.items():
            leaf[index] = chunk[name]
        self._at = (self._at + count) % CAPACITY
        self._size = min(CAPACITY, self._size + count)

    def sample(self) -> dict[str, Any]:
        """Return a batch."""
        index = self._random.integers(self._size, size=BATCH)
        return {name: leaf[index] for name, leaf in self._leaves.items()}


def rate(call: Callable[[], int], seconds: float) -> float:
    """Return what `call` counts, per second."""
    began, count = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < seconds:
        count += call()
    return count / passed


def measure_bray(dtype: Any, shape: tuple[int, ...], seconds: float) -> dict[str, float]:
    """Return inserts and samples per second of a `RemoteBuffer`, uniform and prioritised."""
    tree = segment(dtype, shape)
    layout = Layout(nested.spec(tree))
    packed = Packed(layout, layout.pack(tree))
    figures = {}
    for sampler in ("uniform", "prioritized"):
        config = ReplayConfig(
            unit="transition", capacity=CAPACITY, batch_size=BATCH, sampler=sampler
        )
        buffer = RemoteBuffer(f"bench-{uuid.uuid4().hex[:6]}", layout, config)
        for _ in range(CAPACITY // STEPS + 1):
            buffer.push(packed, wait=True)
        buffer.flush()

        def insert(buffer: RemoteBuffer = buffer) -> int:
            return STEPS * buffer.push(packed, wait=True)

        def sample(buffer: RemoteBuffer = buffer) -> int:
            tree: Any = buffer.pop(30).tree
            return len(tree["reward"])

        def update(buffer: RemoteBuffer = buffer) -> int:
            tree: Any = buffer.pop(30).tree
            buffer.update_priorities(tree["key"], np.abs(tree["reward"]) + 0.1)
            return len(tree["reward"])

        if sampler == "uniform":
            figures["insert"] = rate(insert, seconds)
            buffer.flush()
            figures["sample"] = rate(sample, seconds)
        else:
            figures["prioritised"] = rate(sample, seconds)
            figures["+ update"] = rate(update, seconds)
        buffer.close()
    return figures


def measure_ring(dtype: Any, shape: tuple[int, ...], seconds: float) -> dict[str, float]:
    """Return the same of the ring in an actor, calls in flight so that it is never idle."""
    tree = segment(dtype, shape)
    chunk = {name: tree[name] for name in ("observation", "action", "reward")}
    chunk |= {"next_observation": tree["observation"], "discount": tree["reward"]}
    actor = ray.remote(Ring).options(num_cpus=0).remote(dtype, shape)
    in_flight: list[Any] = []

    def insert() -> int:
        in_flight.append(actor.insert.remote(chunk))
        if len(in_flight) > 8:
            ray.get(in_flight.pop(0))
        return STEPS

    for _ in range(CAPACITY // STEPS + 1):
        insert()
    figures = {"insert": rate(insert, seconds)}
    ray.get(in_flight)
    batches = [actor.sample.remote() for _ in range(4)]

    def sample() -> int:
        batches.append(actor.sample.remote())
        return len(ray.get(batches.pop(0))["reward"])

    figures["sample"] = rate(sample, seconds)
    ray.get(batches)
    figures["sample, a call at a time"] = rate(
        lambda: len(ray.get(actor.sample.remote())["reward"]), seconds
    )
    ray.kill(actor)
    return figures


def measure_reverb(name: str, options: Namespace) -> dict[str, float]:
    """Return Reverb's figures, from an environment of its own; nothing where it cannot run."""
    observation = "vector" if name == "8 float32" else "image"
    found = buffer_replay.measured("reverb", observation, options)
    if "error" in found:
        print(f"reverb did not run: {found['error']}", file=sys.stderr)
        return {}
    return {what: found[f"uniform {what}"] for what in ("insert", "sample")}


def benchmark(options: Namespace, report: Report) -> None:
    """Print medians in thousands a second, and the ratios."""
    options.capacity = CAPACITY
    init_ray()
    try:
        rounds: list[dict[tuple[str, str, str], float]] = []
        for _ in range(options.rounds):
            figures: dict[tuple[str, str, str], float] = {}
            for name, (dtype, shape) in OBSERVATIONS.items():
                measured = {
                    "bray": measure_bray(dtype, shape, options.seconds),
                    "ring in a Ray actor": measure_ring(dtype, shape, options.seconds),
                }
                if options.reverb:
                    measured["reverb"] = measure_reverb(name, options)
                for who, found in measured.items():
                    figures |= {(name, what, who): value for what, value in found.items()}
            rounds.append(figures)
            print(".", end="", file=sys.stderr, flush=True)
    finally:
        shutdown_ray()
    print(f"\n{'observation':<14}{'what':<26}{'who':<22}{'k/s':>10}{'bray ×':>9}")
    for key in rounds[0]:
        name, what, _ = key
        median = statistics.median(r[key] for r in rounds)
        own = name, what.partition(",")[0], "bray"
        ratio = statistics.median(r[own] / r[key] for r in rounds)
        print(f"{key[0]:<14}{key[1]:<26}{key[2]:<22}{median / 1e3:>10,.1f}{ratio:>9.1f}")


if __name__ == "__main__":
    main(__doc__, benchmark, argument("--reverb", action="store_true"), rounds=3, seconds=3.0)
