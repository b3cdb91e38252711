"""How fast an export answers, by backend, threads and batch size, and what to serve it with."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np

from bray_core import nested
from bray_core.nested import ArraySpec, Nested
from bray_model.config import Backend, ModelConfig
from bray_model.definition import open_definition
from bray_model.engines.engine import Engine
from bray_model.export.manifest import QUANTIZED, Manifest, Recommendation
from bray_model.export.measurement import Measurement, median_us
from bray_model.signature import Signature

BATCH_SIZES = (1, 8, 64, 256)
FLOAT, PUBLISHED = "onnxruntime", "after a publish"
_AGREEMENT = 0.99
_QUANTIZED_FROM = 1.2
"""Times the float graph's rows/s: below that other results are not worth it."""
_MORE_THREADS_FROM = 1.2
"""Times as many rows/s as with fewer threads: below that they are better left to others."""
_ENOUGH = 0.9
"""Share of the best rows/s that a smaller batch must reach to be preferred."""


def thread_counts() -> list[int]:
    """Return the numbers of threads worth trying here: powers of two up to the cores."""
    cores = len(os.sched_getaffinity(0))
    return [1 << power for power in range(cores.bit_length()) if 1 << power <= cores]


def random_inputs(
    signature: Signature, rows: int, seed: int = 0, below: int = 1
) -> tuple[Nested, ...]:
    """Return inputs `[rows, ...]`: normal floats, and integers from 0 up to, without, `below`.

    By default the integers are zeros, since they may be indices.
    """
    rng = np.random.default_rng(seed)

    def draw(spec: ArraySpec) -> Any:
        shape = (rows, *spec.shape)
        if spec.dtype.kind == "f":
            return rng.standard_normal(shape).astype(spec.dtype)
        limit = min(below, 2 if spec.dtype.kind == "b" else np.iinfo(spec.dtype).max)
        return rng.integers(limit, size=shape).astype(spec.dtype)

    inputs: tuple[Nested, ...] = nested.map(draw, signature.inputs)
    return inputs


def measure(
    engine: Engine, signature: Signature, backend: str, num_threads: int, seconds: float
) -> list[Measurement]:
    """Measure all batch sizes, each for about so many seconds."""
    return [
        Measurement(
            backend, num_threads, size, median_us(engine, random_inputs(signature, size), seconds)
        )
        for size in BATCH_SIZES
    ]


def measure_export(
    export: Path, manifest: Manifest, seconds: float
) -> tuple[list[Measurement], list[Measurement]]:
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
    measured: Sequence[Measurement], agreement: Mapping[str, float] | None = None
) -> Recommendation:
    """Return the backend, the fewest threads and the smallest batch near the most rows/s.

    Args:
        measured: the float graph (`FLOAT`) and quantised ones.
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
    return Recommendation(
        num_threads=threads,
        max_batch_size=size,
        backend="auto" if backend == FLOAT else cast(Backend, backend),
    )


def _setting(measured: Sequence[Measurement]) -> tuple[int, int]:
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
