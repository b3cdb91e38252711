"""Where the rows of a `RemoteModel` are computed: rows/s, CPU time and memory of each placement.

    uv run python -m benchmarks.micro.model_placement [--processes N] [--lanes N] [--rounds N]

Processes on Ray ask one model as environments do: each has some lanes, and a lane asks for its next
row when it has the answer to the one before. The placements take turns within each round; a line
has the median over the rounds. CPU time is that of the asking processes and of the inference
workers together; memory is their proportional set size (what they share counts once).
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"

import numpy as np
import torch
import uvloop
from benchmarks.harness import Report, argument, main

from bray_core.remote.cluster import init_ray, shutdown_ray
from bray_core.remote.pool import WorkerPool
from bray_model import ModelConfig
from bray_model.remote import RemoteModel

PLACEMENTS = ("caller", "workers", "proxy")


def networks() -> dict[str, tuple[torch.nn.Module, np.ndarray[Any, Any]]]:
    """Return name → network and an example of its input."""
    nn = torch.nn
    small = nn.Sequential(
        nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)
    )
    layers = [nn.Linear(512, 2048), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Linear(2048, 2048), nn.ReLU()]
    large = nn.Sequential(*layers, nn.Linear(2048, 18))
    image = nn.Sequential(
        nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
        nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(),
        nn.Linear(512, 18),
    )  # fmt: skip
    return {
        "policy of 4-64-64-2": (small, np.zeros((1, 4), np.float32)),
        "CNN of Atari, 1.7 M weights": (image, np.zeros((1, 4, 84, 84), np.float32)),
        "MLP of 13.7 M weights": (large, np.zeros((1, 512), np.float32)),
    }


class Asker:
    """One process whose lanes ask."""

    def __init__(self, model: RemoteModel, row: np.ndarray[Any, Any], lanes: int) -> None:
        self._model, self._row, self._lanes = model, row, lanes
        model(row)

    def ask(self, seconds: float) -> int:
        """Ask for so many seconds; return the number of answers."""
        return uvloop.run(self._ask(seconds))

    async def _ask(self, seconds: float) -> int:
        until = time.monotonic() + seconds

        async def lane() -> int:
            answers = 0
            while time.monotonic() < until:
                await self._model.infer(self._row)
                answers += 1
            return answers

        return sum(await asyncio.gather(*(lane() for _ in range(self._lanes))))

    def pid(self) -> int:
        """Return the process id."""
        return os.getpid()


class Case:
    """A model in one placement with the processes that ask it."""

    def __init__(self, name: str, module: Any, example: Any, placement: Any, options: Any) -> None:
        config = ModelConfig(max_batch_size=options.processes * options.lanes)
        extra = {} if placement == "caller" else {"num_workers": options.workers}
        self.model = RemoteModel(name, module, example, config=config, placement=placement, **extra)
        self.pool = WorkerPool(
            f"askers-{name}", Asker, args=(self.model, example[0], options.lanes),
            num_workers=options.processes,
        )  # fmt: skip
        self.pids = [self.pool.call("pid", worker=i) for i in range(options.processes)]
        self.pids += self.model.pids()

    def measure(self, seconds: float) -> tuple[float, float]:
        """Return rows/s and CPU time per row in microseconds."""
        before = sum(map(cpu_s, self.pids))
        began = time.perf_counter()
        asking = [self.pool.submit("ask", seconds, worker=i) for i in range(self.pool.size)]
        rows = sum(self.pool.result(ref) for ref in asking)
        took_s = time.perf_counter() - began
        return rows / took_s, (sum(map(cpu_s, self.pids)) - before) / rows * 1e6

    def memory_mib(self) -> float:
        """Return the proportional set size of all its processes."""
        return sum(map(pss_mib, self.pids))

    def close(self) -> None:
        """End the processes and the model."""
        self.pool.close()
        self.model.close()


def cpu_s(pid: int) -> float:
    """Return the CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pss_mib(pid: int) -> float:
    """Return the proportional set size of a process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))


def benchmark(options: Namespace, report: Report) -> None:
    """Print a line for each network and placement."""
    torch.set_num_threads(1)
    init_ray()
    from ray import cloudpickle  # after bray_core.remote.pool has set what Ray reads when it loads

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    for number, (name, (module, example)) in enumerate(networks().items()):
        if number not in options.networks:
            continue
        cases = {
            placement: Case(f"{number}-{placement}", module, example, placement, options)
            for placement in options.placements
        }
        found: dict[str, list[tuple[float, float]]] = {placement: [] for placement in cases}
        for _ in range(options.rounds):
            for placement, case in cases.items():
                found[placement].append(case.measure(options.seconds))
        print(f"{name}: {options.processes} processes of {options.lanes} lanes", flush=True)
        base = statistics.median(rate for rate, _ in found[options.placements[0]])
        for placement, case in cases.items():
            rate = statistics.median(rate for rate, _ in found[placement])
            cpu_us = statistics.median(cpu for _, cpu in found[placement])
            print(
                f"  {placement:8} {rate:9,.0f} rows/s  x{rate / base:.2f}  {cpu_us:7,.0f} us CPU "
                f"a row  {case.memory_mib():6,.0f} MiB",
                flush=True,
            )
            case.close()
    shutdown_ray()


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        argument("--processes", type=int, default=6, help="processes that ask"),
        argument("--lanes", type=int, default=1, help="lanes of each process"),
        argument("--workers", type=int, default=1, help="inference workers"),
        argument(
            "--networks",
            type=int,
            nargs="+",
            default=[0, 1, 2],
            help="numbers of the networks, 0 to 2",
        ),
        argument(
            "--placements", nargs="+", default=PLACEMENTS, choices=PLACEMENTS, help="first: x1"
        ),
        rounds=3,
        seconds=2.0,
    )
