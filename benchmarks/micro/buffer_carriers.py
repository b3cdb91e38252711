"""Two producer processes to one consumer that receives finished batches.

    uv run python -m benchmarks.micro.buffer_carriers [--rounds N] [--seconds S]

`frames`: 84×84×4 uint8 in segments of 128, batches of 8 segments; beside them what two processes
copy at the same time from one place in memory to another (the machine's copy bandwidth), measured
in turns with it. `small`: samples of 200 bytes in 8 leaves, segments of 64, batches of 64 segments;
beside them `np.stack` of each leaf from dicts of samples that are at hand in this process.
`socket` and `ray` are the same by the carriers that go between nodes, here over loopback.
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
from benchmarks.harness import Report, main

from bray_buffer import BufferConfig
from bray_buffer.remote import RemoteBuffer
from bray_core import nested
from bray_core.layout import Layout, Packed
from bray_core.remote.cluster import init_ray, shutdown_ray
from bray_core.remote.pool import WorkerPool

PRODUCERS = 2
FRAME = 84 * 84 * 4
SMALL_LEAVES = {
    "units": (24,),
    "cards": (10,),
    "logits": (8,),
    "action": (),
    "reward": (),
    "value": (),
    "log_prob": (),
    "done": (4,),
}
"""50 float32: 200 bytes a sample."""
COPY_NBYTES = 256 << 20


def frames() -> tuple[Layout, int, int]:
    """Return the layout of a segment of frames, its steps, and the segments of a batch."""
    return Layout(nested.spec({"observation": np.zeros((128, 84, 84, 4), np.uint8)})), 128, 8


def small() -> tuple[Layout, int, int]:
    """Return the same of small samples."""
    tree = {name: np.zeros((64, *shape), np.float32) for name, shape in SMALL_LEAVES.items()}
    return Layout(nested.spec(tree)), 64, 64


class Producer:
    """A process that pushes or copies for so long."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._buffers: dict[str, RemoteBuffer] = {}

    def join(self, buffer: RemoteBuffer, path: str) -> None:
        """Connect by the given way."""
        if path != "shared":
            buffer._pool.near = lambda: []  # type: ignore[method-assign]
        if path == "ray":
            from bray_buffer.remote.connections import RayCallConnection

            buffer._connections.opened[0] = RayCallConnection(buffer._pool, 0, buffer.layout)
        buffer._connections.get(0)
        self._buffer = buffer

    def push(self, seconds: float) -> int:
        """Push segments that lie in memory, one at a time; return how many."""
        rng = np.random.default_rng(0)
        layout = self._buffer.layout
        blocks = rng.integers(0, 255, (8, layout.nbytes), np.uint8)
        segments = [Packed(layout, block) for block in blocks]
        pushed = 0
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            pushed += self._buffer.push(segments[pushed % 8], wait=True, timeout_s=30)
        return pushed

    def copy(self, seconds: float) -> float:
        """Return the bytes per second that this process copies."""
        source = np.ones(COPY_NBYTES, np.uint8)
        target = np.ones(COPY_NBYTES, np.uint8)
        began, copied = time.monotonic(), 0
        while (passed := time.monotonic() - began) < seconds:
            np.copyto(target, source)
            copied += COPY_NBYTES
        return copied / passed


def bandwidth(producers: WorkerPool, seconds: float) -> float:
    """Return the bytes per second that two processes copy together."""
    return float(sum(producers.call_all("copy", seconds)))


def received(
    producers: WorkerPool, what: Callable[[], tuple[Layout, int, int]], path: str, seconds: float
) -> tuple[float, float]:
    """Return samples per second that the consumer received, and the share of its time in `pop`."""
    layout, steps, batch = what()
    config = BufferConfig(batch_size=batch, capacity=4 * batch, when_full="block")
    buffer = RemoteBuffer(f"bench-{uuid.uuid4().hex[:6]}", layout, config)
    producers.call_all("join", buffer, path)
    refs = [producers.submit("push", seconds + 1, worker=i) for i in range(PRODUCERS)]
    for _ in range(3):  # the memory is touched
        buffer.pop(30)
    began = time.monotonic()
    cpu = time.thread_time()
    count = 0
    while (passed := time.monotonic() - began) < seconds:
        block: Any = buffer.pop(30).block
        count += len(block)
    busy = (time.thread_time() - cpu) / passed
    while not all(_is_done(ref) for ref in refs):  # room for those that wait for it
        try:
            buffer.pop(0.2)
        except TimeoutError:
            continue
    buffer.close()
    return count * steps / passed, busy


def _is_done(ref: Any) -> bool:
    import ray

    return bool(ray.wait([ref], timeout=0)[0])


def stacked(seconds: float) -> float:
    """Return samples per second by `np.stack` of every leaf."""
    rng = np.random.default_rng(0)
    samples = [
        {name: rng.random(shape, np.float32) for name, shape in SMALL_LEAVES.items()}
        for _ in range(4096)
    ]
    began, count = time.monotonic(), 0
    while (passed := time.monotonic() - began) < seconds:
        {name: np.stack([sample[name] for sample in samples]) for name in SMALL_LEAVES}
        count += len(samples)
    return count / passed


def benchmark(options: Namespace, report: Report) -> None:
    """Print a table of medians, and the ratios of each round."""
    init_ray()
    try:
        producers = WorkerPool("producers", Producer, args=("",), num_workers=PRODUCERS)
        rounds = []
        for _ in range(options.rounds):
            seconds = options.seconds
            figures: dict[str, float] = {"copy": bandwidth(producers, seconds)}
            figures["stack"] = stacked(seconds)
            for path in ("shared", "socket", "ray"):
                figures[f"frames {path}"], busy = received(producers, frames, path, seconds)
                figures[f"small {path}"], _ = received(producers, small, path, seconds)
                if path == "shared":
                    figures["consumer"] = busy
            rounds.append(figures)
            print(".", end="", file=sys.stderr, flush=True)
        producers.close()
    finally:
        shutdown_ray()
    median = {name: statistics.median(r[name] for r in rounds) for name in rounds[0]}
    print(f"\ncopy bandwidth, two processes: {median['copy'] / 1e9:.1f} GB/s")
    print(f"np.stack: {median['stack'] / 1e6:.2f} M samples/s")
    print(f"{'carrier':<10}{'frames/s':>12}{'GB/s':>8}{'of copy':>9}{'small/s':>12}{'× stack':>9}")
    for path in ("shared", "socket", "ray"):
        share = statistics.median(r[f"frames {path}"] * FRAME / r["copy"] for r in rounds)
        times = statistics.median(r[f"small {path}"] / r["stack"] for r in rounds)
        frames_per_s, small_per_s = median[f"frames {path}"], median[f"small {path}"]
        print(
            f"{path:<10}{frames_per_s / 1e3:>10.0f} k{frames_per_s * FRAME / 1e9:>8.1f}"
            f"{share:>8.0%} {small_per_s / 1e6:>10.2f} M{times:>9.1f}"
        )
    print(f"processor time of the consumer, frames by shared memory: {median['consumer']:.0%}")


if __name__ == "__main__":
    main(__doc__, benchmark, rounds=5, seconds=3.0)
