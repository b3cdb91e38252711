"""How fast an export answers, by threads and batch size, and what to serve it with."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bray_core import nested
from bray_core.nested import ArraySpec, Nested
from bray_model.engine import Engine
from bray_model.manifest import Recommendation
from bray_model.signature import Signature

BATCH_SIZES = (1, 8, 64, 256)
_MIN_RUNS = 5
_MORE_THREADS_FROM = 1.2
"""Times as many rows/s as with fewer threads: below that they are better left to others."""
_ENOUGH = 0.9
"""Share of the best rows/s that a smaller batch must reach to be preferred."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One setting of one backend."""

    backend: str
    num_threads: int
    batch_size: int
    median_us: float
    """Of one forward."""

    @property
    def rows_per_s(self) -> float:
        """Rows answered in a second by one forward after the other."""
        return self.batch_size * 1e6 / self.median_us


def thread_counts() -> list[int]:
    """Return the numbers of threads worth trying here: powers of two up to the cores."""
    cores = len(os.sched_getaffinity(0))
    return [1 << power for power in range(cores.bit_length()) if 1 << power <= cores]


def random_inputs(signature: Signature, rows: int, seed: int = 0) -> tuple[Nested, ...]:
    """Return inputs `[rows, ...]`: normal floats, and zeros where numbers may be indices."""
    rng = np.random.default_rng(seed)

    def draw(spec: ArraySpec) -> Any:
        shape = (rows, *spec.shape)
        if spec.dtype.kind == "f":
            return rng.standard_normal(shape).astype(spec.dtype)
        return np.zeros(shape, spec.dtype)

    inputs: tuple[Nested, ...] = nested.map(draw, signature.inputs)
    return inputs


def measure(
    engine: Engine, signature: Signature, backend: str, num_threads: int, seconds: float
) -> list[Measurement]:
    """Measure all batch sizes, each for about so many seconds."""
    found = []
    for size in BATCH_SIZES:
        inputs = random_inputs(signature, size)
        engine.run(inputs)  # the first run allocates
        times: list[float] = []
        until = time.perf_counter() + seconds
        while time.perf_counter() < until or len(times) < _MIN_RUNS:
            began = time.perf_counter()
            engine.run(inputs)
            times.append(time.perf_counter() - began)
        median_us = statistics.median(times) * 1e6
        found.append(Measurement(backend, num_threads, size, median_us))
    return found


def recommend(measured: Sequence[Measurement]) -> Recommendation:
    """Return the fewest threads and the smallest batch that come near the most rows/s."""
    best = {
        threads: max(m.rows_per_s for m in measured if m.num_threads == threads)
        for threads in sorted({m.num_threads for m in measured})
    }
    chosen = min(best)
    for threads, rate in best.items():
        if rate >= _MORE_THREADS_FROM * best[chosen]:
            chosen = threads
    of_chosen = [m for m in measured if m.num_threads == chosen]
    enough = [m.batch_size for m in of_chosen if m.rows_per_s >= _ENOUGH * best[chosen]]
    return Recommendation(num_threads=chosen, max_batch_size=min(enough))


def table(measured: Sequence[Measurement]) -> str:
    """Return the measurements as text."""
    width = max(len(m.backend) for m in measured)
    lines = [f"{'backend':<{width}}  threads  batch   us a forward     rows/s"]
    lines += [
        f"{m.backend:<{width}}  {m.num_threads:7}  {m.batch_size:5}  {m.median_us:13,.1f}"
        f"  {m.rows_per_s:9,.0f}"
        for m in measured
    ]
    return "\n".join(lines)
