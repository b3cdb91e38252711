"""1,000 publishes of a `RemoteModel` under full load, for each placement.

    uv run python -m benchmarks.micro.model_remote [--publishes N]

Two processes ask with 16 callers each while this one publishes 1.7 M weights as fast as it goes.
All weights are equal to the version's number and the network answers with the smallest and the
largest: an answer whose two numbers are not those of its version is a mixture. `went back` counts
answers older than one that the same process had before.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from argparse import Namespace
from collections import Counter
from typing import Any

os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"

import numpy as np
import uvloop
from benchmarks.harness import Report, argument, main
from benchmarks.micro import model_load

from bray_core.remote.cluster import init_ray, shutdown_ray
from bray_core.remote.pool import WorkerPool
from bray_model.remote import RemoteModel

PROCESSES = 2
CALLERS = 16
PLACEMENTS: dict[str, dict[str, Any]] = {
    "caller": {},
    "workers": {"placement": "workers", "num_workers": 2},
    "proxy": {"placement": "proxy", "num_workers": 2},
}


class Asker:
    """One process that asks."""

    def __init__(self, model: RemoteModel) -> None:
        self._model = model
        model(np.zeros(1, np.float32))

    def ask(self, last: int) -> tuple[Counter[str], set[int], float]:
        """Ask until version `last` answers; return answers by kind, versions, answers a second."""
        return uvloop.run(self._ask(last))

    async def _ask(self, last: int) -> tuple[Counter[str], set[int], float]:
        kinds: Counter[str] = Counter()
        seen = {0}
        newest = 0

        async def caller() -> None:
            nonlocal newest
            while newest < last:
                before = newest
                try:
                    outputs, version = await self._model.infer(np.zeros(1, np.float32))
                except Exception as error:  # noqa: BLE001  counted by its name
                    kinds[f"failed: {type(error).__name__}"] += 1
                    continue
                kinds["whole" if (outputs == version).all() else "mixed"] += 1
                kinds["went back"] += version < before
                newest = max(newest, version)
                seen.add(version)

        began = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(CALLERS)))
        return kinds, seen, (kinds["whole"] + kinds["mixed"]) / (time.perf_counter() - began)


def measure(placement: str, count: int) -> None:
    """Print a line."""
    model = RemoteModel(
        f"load-{placement}",
        model_load.Extremes(),
        np.zeros((1, 1), np.float32),
        **PLACEMENTS[placement],
    )
    pool = WorkerPool(f"askers-{placement}", Asker, args=(model,), num_workers=PROCESSES)
    asking = [pool.submit("ask", count, worker=i) for i in range(PROCESSES)]
    seconds: list[float] = []
    model_load.publish_all(
        lambda version: model.publish(model_load.weights(version)), count, seconds
    )
    results = [pool.result(ref) for ref in asking]
    kinds = sum((kinds for kinds, _, _ in results), Counter())
    versions = [len(seen) for _, seen, _ in results]
    answers = ", ".join(f"{kind} {number:,}" for kind, number in sorted(kinds.items()))
    print(
        f"{placement}: {count} publishes, {statistics.median(seconds) * 1e3:.1f} ms each; answers: "
        f"{answers}; {sum(rate for _, _, rate in results):,.0f}/s; versions seen: {versions}",
        flush=True,
    )
    pool.close()
    model.close()


def benchmark(options: Namespace, report: Report) -> None:
    """Print the lines."""
    init_ray()
    from ray import cloudpickle  # after bray_core.remote.pool has set what Ray reads when it loads

    cloudpickle.register_pickle_by_value(model_load)
    for placement in PLACEMENTS:
        measure(placement, options.publishes)
    shutdown_ray()


if __name__ == "__main__":
    main(__doc__, benchmark, argument("--publishes", type=int, default=1000))
