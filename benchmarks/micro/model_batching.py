"""256 callers of a row each, beside the bare engine called with full batches.

    uv run python -m benchmarks.micro.model_batching

The callers run on one event loop, each waiting for its answer before it asks again. Full batch: 128
rows, so that one half of the callers is asked while the other is computed. `on the loop` is what
`ModelConfig` chooses by itself for quick forwards. In each round the bare engine is measured right
before and after; medians of the rounds.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from argparse import Namespace
from pathlib import Path

import numpy as np
import uvloop
from benchmarks.harness import Report, main
from benchmarks.micro.networks import exported

from bray_model import Model, ModelConfig
from bray_model.engines.definition import open_definition

CALLERS = 256
FULL = 128


async def ask(model: Model, row: np.ndarray, seconds: float) -> tuple[float, list[float]]:
    """Return rows/s and the latencies in seconds."""
    latencies: list[float] = []
    clock = time.perf_counter
    until = 0.0

    async def caller() -> None:
        while (began := clock()) < until:
            await model.forward(row)
            latencies.append(clock() - began)

    await asyncio.gather(*(model.forward(row) for _ in range(CALLERS)))
    began = clock()
    until = began + seconds
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return len(latencies) / (clock() - began), latencies


def bare(export: Path, rows: np.ndarray, seconds: float) -> float:
    """Return the seconds of a full batch by the engine alone."""
    engine = open_definition(export, None).engine
    batch = (np.repeat(rows, FULL, 0),)
    engine.run(batch)
    times = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        began = time.perf_counter()
        engine.run(batch)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


async def futures(seconds: float) -> float:
    """Return how many rows/s callers could get who wait for nothing but a future of the loop."""
    waiting: list[asyncio.Future[None]] = []
    loop = asyncio.get_running_loop()
    count = 0
    until = time.perf_counter() + seconds

    def settle() -> None:
        batch = waiting.copy()
        waiting.clear()
        for future in batch:
            future.set_result(None)

    async def caller() -> None:
        nonlocal count
        while time.perf_counter() < until:
            future = loop.create_future()
            waiting.append(future)
            if len(waiting) == FULL:
                loop.call_soon(settle)
            await future
            count += 1
        if waiting:
            loop.call_soon(settle)

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return count / seconds


def benchmark(options: Namespace, report: Report) -> None:
    """Print the table."""
    print(f"{CALLERS} callers, a row each, full batch {FULL}; goals: 0.85 of the bare engine's")
    print("rows/s, p99 under 3 full batches")
    print(f"{'':22}{'bare rows/s':>14}{'rows/s':>12}{'ratio':>8}{'us a row':>10}{'p99/batch':>11}")
    with tempfile.TemporaryDirectory() as folder:
        for name in ("small", "cnn"):
            export, rows = exported(name, Path(folder))
            for where, below_us in (("in a thread", 0), ("on the loop", 10**9)):
                config = ModelConfig(max_batch_size=FULL, inline_below_us=below_us)
                found = []
                for _ in range(options.rounds):
                    with Model(export, config=config) as model:
                        before = bare(export, rows, options.seconds / 4)
                        rate, latencies = uvloop.run(ask(model, rows[0], options.seconds))
                        full_s = (before + bare(export, rows, options.seconds / 4)) / 2
                    p99 = float(np.quantile(latencies, 0.99))
                    found.append((FULL / full_s, rate, rate * full_s / FULL, p99 / full_s))
                rows_s, rate, ratio, p99 = (statistics.median(c) for c in zip(*found, strict=True))
                print(
                    f"{f'{name}, {where}':22}{rows_s:14,.0f}{rate:12,.0f}{ratio:8.2f}"
                    f"{1e6 / rate - 1e6 / rows_s:10.1f}{p99:11.1f}",
                    flush=True,
                )
    bound = statistics.median(uvloop.run(futures(options.seconds)) for _ in range(options.rounds))
    print(f"the same callers waiting for bare futures of the loop, no model at all: {bound:,.0f}/s")


if __name__ == "__main__":
    main(__doc__, benchmark, rounds=5, seconds=2.0)
