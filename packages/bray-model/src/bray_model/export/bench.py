"""How fast an export answers, by backend, threads and batch size, and what to serve it with."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

from bray_core.nested import Nested
from bray_core.process.machine import num_cores
from bray_model.config import Backend, ModelConfig
from bray_model.engines.definition import open_definition
from bray_model.engines.engine import Engine
from bray_model.export.trial_inputs import random_inputs
from bray_model.export_files.manifest import QUANTIZED, Manifest, ServeRecommendation
from bray_model.signature import Signature

BATCH_SIZES = (1, 8, 64, 256)
FLOAT, PUBLISHED = "onnxruntime", "after a publish"
_AGREEMENT = 0.99
_QUANTIZED_FROM = 1.2
"""Times the float graph's rows/s: below that other results are not worth it."""
_MORE_THREADS_FROM = 1.2
"""Times as many rows/s as with fewer threads: below that they are better left to others."""
_MIN_RUNS = 5
_ENOUGH = 0.9
"""Share of the best rows/s that a smaller batch must reach to be preferred."""


@dataclass(frozen=True, slots=True)
class ForwardMeasurement:
    """One setting of one backend."""

    backend: str
    num_threads: int
    batch_size: int
    median_us: float
    """Median time of one forward in microseconds."""

    @property
    def rows_per_s(self) -> float:
        """Rows answered in a second by one forward after the other."""
        return self.batch_size * 1e6 / self.median_us


def median_us(engine: Engine, inputs: tuple[Nested, ...], seconds: float) -> float:
    """Return the median time of a forward in microseconds, measured for about so many seconds."""
    engine.run(inputs)  # the first run allocates
    times: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(times) < _MIN_RUNS:
        began = time.perf_counter()
        engine.run(inputs)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


def table(
    measured: Sequence[ForwardMeasurement], agreement: Mapping[str, float] | None = None
) -> str:
    """Return the measurements as text, with the agreement of the backends that have one."""
    width = max(len("backend"), *(len(m.backend) for m in measured))
    lines = [f"{'backend':<{width}}  threads  batch   us a forward     rows/s"]
    if agreement:
        lines[0] += "  same arg-max"
    for m in measured:
        line = f"{m.backend:<{width}}  {m.num_threads:7}  {m.batch_size:5}  {m.median_us:13,.1f}"
        line += f"  {m.rows_per_s:9,.0f}"
        if agreement and m.backend in agreement:
            line += f"  {agreement[m.backend]:12.2%}"
        lines.append(line)
    return "\n".join(lines)


def thread_counts() -> list[int]:
    """Return the numbers of threads worth trying here: powers of two up to the cores."""
    cores = num_cores()
    return [1 << power for power in range(cores.bit_length()) if 1 << power <= cores]


def measure(
    engine: Engine, signature: Signature, backend: str, num_threads: int, seconds: float
) -> list[ForwardMeasurement]:
    """Measure all batch sizes, each for about so many seconds."""
    return [
        ForwardMeasurement(
            backend, num_threads, size, median_us(engine, random_inputs(signature, size), seconds)
        )
        for size in BATCH_SIZES
    ]


def measure_export(
    export: Path, manifest: Manifest, seconds: float
) -> tuple[list[ForwardMeasurement], list[ForwardMeasurement]]:
    """Measure every backend that an export holds, each setting for about so many seconds.

    Returns:
        The backends, and the float graph as it answers after a publish, if it can.
    """
    backends: list[Backend] = ["auto"]
    backends += [kind for kind in get_args(Backend) if QUANTIZED.get(kind) in manifest.files]
    found, published = [], []
    for backend in backends:
        for threads in thread_counts():
            config = ModelConfig(backend=backend, num_threads=threads)
            engine = open_definition(export, None, config).engine
            label = FLOAT if backend == "auto" else backend
            found += measure(engine, manifest.signature, label, threads, seconds)
            weights = engine.weights()
            if weights is not None:
                engine.load(weights)
                published += measure(engine, manifest.signature, PUBLISHED, threads, seconds)
    return found, published


def recommend(
    measured: Sequence[ForwardMeasurement], agreement: Mapping[str, float] | None = None
) -> ServeRecommendation:
    """Return the backend, the fewest threads and the smallest batch near the most rows/s.

    Args:
        measured: Measurements of the float graph (`FLOAT`) and of quantised ones.
        agreement: backend → share of decisions that are the float graph's. One with less than
            0.99, or without, is not recommended, nor one that is less than 1.2 times as fast.
    """
    rates = {m.backend: 0.0 for m in measured}
    for m in measured:
        rates[m.backend] = max(rates[m.backend], m.rows_per_s)
    better = [
        name
        for name, share in (agreement or {}).items()
        if share >= _AGREEMENT and rates.get(name, 0.0) >= _QUANTIZED_FROM * rates[FLOAT]
    ]
    backend = max(better, key=rates.__getitem__, default=FLOAT)
    threads, size = _setting([m for m in measured if m.backend == backend])
    return ServeRecommendation(
        num_threads=threads,
        max_batch_size=size,
        backend="auto" if backend == FLOAT else cast(Backend, backend),
    )


def _setting(measured: Sequence[ForwardMeasurement]) -> tuple[int, int]:
    """Return threads and batch size."""
    best = {
        threads: max(m.rows_per_s for m in measured if m.num_threads == threads)
        for threads in sorted({m.num_threads for m in measured})
    }
    chosen = min(best)
    for threads, rate in best.items():
        if rate >= _MORE_THREADS_FROM * best[chosen]:
            chosen = threads
    of_chosen = [m for m in measured if m.num_threads == chosen]
    return chosen, min(m.batch_size for m in of_chosen if m.rows_per_s >= _ENOUGH * best[chosen])
