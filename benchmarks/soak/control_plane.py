"""What the control plane costs by the number of workers: rollout workers that do nothing but sleep.

    uv run python -m benchmarks.soak.control_plane                # 1, 4, 16 and 64 workers
    uv run python -m benchmarks.soak.control_plane --workers 1 8 --seconds 20

Each worker is one of `RemoteRollouts`, whose runner sleeps 50 ms and counts one step: no model, no
buffer, no environment. The driver polls them four times a second as in a run, and the hub once a
second. What is left is what it costs to have a worker: CPU of the driver, of Ray's servers and of
the worker itself, the time of one poll of the rollouts and of one round of the hub, memory, and the
time to start them all. Stops where memory would not suffice. One JSON line a size, then a table,
and what one worker costs at the largest size beside what it costs at the smallest.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from typing import Any, cast

from benchmarks.harness import Report, argument, main
from benchmarks.soak.watched import Machine
from benchmarks.soak.watched.machine import command, rss_bytes

import bray
from bray_actor import Runner

POLL_S = 0.25
SLEEP_S = 0.05
WORKER_BYTES = 130e6
"""Of a worker's own, measured."""
SPARE_BYTES = 2e9
SERVERS = {"gcs": "/gcs_server", "raylet": "/raylet/raylet"}


class Sleeper:
    """A runner that takes no step of anything."""

    async def run(self, steps: int) -> int:
        """Sleep."""
        await asyncio.sleep(SLEEP_S)
        return steps

    def cut(self) -> None:
        """Nothing is recorded."""

    def take_returns(self) -> list[float]:
        """No episode ends."""
        return []

    def close(self) -> None:
        """Nothing is open."""


def make_sleeper(worker: int) -> Runner:
    """Make the runner of a worker."""
    return cast(Runner, Sleeper())


def available_bytes() -> float:
    """Return the machine's memory that is free or can be freed."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return float(line.split()[1]) * 1024
    raise OSError("/proc/meminfo has no MemAvailable")


def cpu_by_part(machine: Machine, workers: set[int]) -> dict[str, float]:
    """Return the CPU seconds used so far by the driver, Ray's servers and the workers."""
    used = dict.fromkeys(("driver", *SERVERS, "other", "workers"), 0.0)
    for pid, process in machine.processes().items():
        used[_part(machine, workers, pid)] += process.cpu_s
    return used


def _part(machine: Machine, workers: set[int], pid: int) -> str:
    if pid == machine.driver:
        return "driver"
    if pid in workers:
        return "workers"
    words = command(pid).split(" ")[0]
    return next((part for part, path in SERVERS.items() if words.endswith(path)), "other")


def measure(num_workers: int, seconds: float) -> dict[str, float]:
    """Start so many workers, let them be for a while, and return what that cost."""
    with tempfile.TemporaryDirectory() as project, bray.init(project, "idle", "ray") as run:
        machine = Machine(os.getpid())
        started = time.perf_counter()
        rollouts = run.rollouts("idle", make_sleeper, steps=1, num_workers=num_workers)
        rollouts.poll()
        start_s = time.perf_counter() - started
        time.sleep(3.0)
        workers = set(rollouts._pool.pids())
        before, began = cpu_by_part(machine, workers), time.perf_counter()
        polls = poll_for(rollouts, seconds)
        passed_s = time.perf_counter() - began
        after = cpu_by_part(machine, workers)
        rounds = [timed(run.metrics) for _ in range(20)]
        rss = statistics.median(rss_bytes(pid) for pid in workers)
    cpu = {f"{part}_cpu": (after[part] - before[part]) / passed_s for part in after}
    return {
        "workers": num_workers,
        "start_s": start_s,
        **cpu,
        "poll_ms": 1e3 * statistics.median(polls),
        "hub_ms": 1e3 * statistics.median(rounds),
        "worker_mb": rss / 1e6,
    }


def poll_for(rollouts: Any, seconds: float) -> list[float]:
    """Poll as an algorithm does; return the seconds that each poll took."""
    end = time.perf_counter() + seconds
    polls = []
    while time.perf_counter() < end:
        polls.append(timed(rollouts.poll))
        time.sleep(max(0.0, POLL_S - polls[-1]))
    return polls


def timed(call: Any) -> float:
    """Return the seconds that a call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def table(rows: list[dict[str, float]]) -> str:
    """Return the figures of all sizes, CPU as a percentage of a core."""
    parts = [name for name in rows[0] if name.endswith("_cpu")]
    lines = [" workers  start s " + "".join(f"{p[:-4] + ' %':>10}" for p in parts)]
    lines[0] += "   poll ms    hub ms  MB/worker"
    for row in rows:
        line = f"{row['workers']:8} {row['start_s']:8.1f} "
        line += "".join(f"{100 * row[part]:10.2f}" for part in parts)
        line += f"{row['poll_ms']:10.2f}{row['hub_ms']:10.2f}{row['worker_mb']:11.0f}"
        lines.append(line)
    return "\n".join(lines)


def ratios(rows: list[dict[str, float]]) -> str:
    """Return what a worker costs at the largest size, beside the smallest."""
    first, last = rows[0], rows[-1]
    lines = []
    for name in first:
        if name in ("workers", "worker_mb"):
            continue
        was, now = first[name] / first["workers"], last[name] / last["workers"]
        more = (last[name] - first[name]) / max(last["workers"] - first["workers"], 1)
        share = f"{now / was:.2f}×" if was else "-"
        lines.append(f"{name:12} per worker: {was:.5f} → {now:.5f} ({share}); each more {more:.5f}")
    return "\n".join(lines)


def benchmark(options: Namespace, report: Report) -> None:
    """Measure each size that fits."""
    rows: list[dict[str, float]] = []
    for num_workers in options.workers:
        needed = num_workers * WORKER_BYTES + SPARE_BYTES
        if available_bytes() < needed:
            print(f"{num_workers} workers would take {needed / 1e9:.1f} GB: stopped", flush=True)
            break
        rows.append(measure(num_workers, options.seconds))
        print(json.dumps(rows[-1]), flush=True)
    print(table(rows))
    print(ratios(rows))


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        argument("--workers", type=int, nargs="+", default=[1, 4, 16, 64]),
        seconds=10.0,
    )
