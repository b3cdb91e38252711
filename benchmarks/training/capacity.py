"""What `bray plan` predicts, beside what a run reaches: on one core, on two, on more.

    python -m benchmarks.training.capacity                    # 1 and 2 cores, APPO on CartPole
    uv run python -m benchmarks.training.capacity --template atari   # any template, with overrides
    python -m benchmarks.training.capacity --cores 16         # 1, 2 and 16, where there are so many
    python -m benchmarks.training.capacity --only driver     # what one more player costs the driver

The unit costs are measured on one core before the runs and again after them, and averaged, because
a shared machine changes meanwhile. Then the template trains as `bray train` does, kept to so many
cores: one in one process (`--runtime local`), more on Ray with a player a core. Frames/s are those
of the run's second half, from its metrics. One JSON line each: predicted, measured, their ratio,
the bottleneck.

The driver's cost of a player is the difference of its CPU time with few and with many players that
do nothing, a second: this is `driver_us` of the model.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from benchmarks.harness import Report, argument, main

import bray
from bray.planning.capacity import Machines, UnitCosts, capacity
from bray_core import metrics
from bray_core.metrics.json_lines import curve
from bray_core.remote.pool import WorkerPool

BRAY = [sys.executable, "-m", "bray_core.cli"]
FEW, MANY = 2, 10
POLL_S = 0.25
DEFAULT = "algorithm: appo\nsource: {environment: CartPole-v1, num_envs: 16}\n"
NEVER = ["goal.evaluate_at=.inf", "goal.max_frames=1000000000000"]


def command(cores: int, *arguments: str) -> list[str]:
    """Return a command of bray kept to the first cores of this process."""
    chosen = sorted(os.sched_getaffinity(0))[:cores]
    return ["taskset", "-c", ",".join(map(str, chosen)), *BRAY, *arguments]


def costs_of(template: str, overrides: Sequence[str], seconds: float) -> UnitCosts:
    """Return the unit costs, measured in a process of its own."""
    arguments = ["plan", template, *overrides, "--seconds", str(seconds), "--json"]
    done = subprocess.run(command(1, *arguments), check=True, capture_output=True, text=True)
    return UnitCosts(**json.loads(done.stdout)["costs"])


def mean_of(first: UnitCosts, second: UnitCosts) -> UnitCosts:
    """Return the means of two measurements."""
    pairs = {f.name: (getattr(first, f.name), getattr(second, f.name)) for f in fields(UnitCosts)}
    return UnitCosts(**{
        name: pair[0] if pair[0] is None or isinstance(pair[0], bool) else statistics.mean(pair)
        for name, pair in pairs.items()
    })  # fmt: skip


def reached(template: str, overrides: Sequence[str], cores: int, seconds: float) -> float:
    """Train on so many cores, twice the seconds, and return the frames/s of the second half."""
    with tempfile.TemporaryDirectory() as project:
        where = ["--project", project, "--trial", "run"]
        where += ["--runtime", "local" if cores == 1 else "ray"]
        settings = [*overrides, *NEVER, f"actor.num_workers={cores}"]
        run = subprocess.Popen(
            command(cores, "train", template, *settings, *where),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            return watched(run, Path(project) / "run", 2 * seconds)
        finally:
            run.send_signal(signal.SIGINT)
            run.communicate()


def watched(run: subprocess.Popen[str], trial: Path, seconds: float) -> float:
    """Return the frames/s of the last half of so many seconds in which a run has trained."""
    while True:
        time.sleep(1.0)
        if run.poll() is not None:
            raise SystemExit(f"{run.args} ended with {run.returncode}:\n{run.communicate()[1]}")
        at_seconds, _ = curve(trial, "trainer/frames", "seconds")
        if len(at_seconds) and at_seconds[-1] - at_seconds[0] > seconds:
            break
    at_seconds, _ = curve(trial, "actor/steps_per_s", "seconds")
    at_frames, _ = curve(trial, "actor/steps_per_s", "frames")
    late = [i for i, at in enumerate(at_seconds) if at >= at_seconds[-1] - seconds / 2]
    played, passed = (at[late[-1]] - at[late[0]] for at in (at_frames, at_seconds))
    return float(played / passed)


def compare(template: str, overrides: Sequence[str], sizes: Sequence[int], seconds: float) -> None:
    """Print one line for each number of cores."""
    first = costs_of(template, overrides, seconds)
    found = {}
    for cores in sizes:
        found[cores] = reached(template, overrides, cores, seconds)
    costs = mean_of(first, costs_of(template, overrides, seconds))
    print(json.dumps({"costs": {f.name: getattr(costs, f.name) for f in fields(UnitCosts)}}))
    for cores, measured in found.items():
        prediction = capacity(costs, Machines(cores=cores))
        line = {
            "cores": cores,
            "predicted": round(prediction.frames_per_s),
            "measured": round(measured),
            "measured_of_predicted": round(measured / prediction.frames_per_s, 3),
            "bottleneck": prediction.bottleneck,
        }
        print(json.dumps(line), flush=True)


class Idle:
    """A player that plays nothing, and records what a player records."""

    def poll(self) -> tuple[int, list[float]]:
        """Return what `RolloutWorker.poll` would."""
        metrics.record("actor/steps", 1, kind="count")
        for name in ("actor/utilisation", "model/forward_s", "model/batch_rows", "model/wait_s"):
            metrics.record(name, 0.5)
        for name in ("actor/episode_return", "actor/episode_length"):
            metrics.record(name, 1.0)
        metrics.record("actor/episodes", 1, kind="count")
        return 0, []


def driver_s(players: int, seconds: float) -> float:
    """Return the driver's CPU seconds a second with so many idle players."""
    pool = WorkerPool("idle", Idle, num_workers=players)
    try:
        pool.call_all("poll")
        began, busy = time.perf_counter(), time.process_time()
        while time.perf_counter() - began < seconds:
            for ref in [pool.submit("poll", worker=i) for i in range(players)]:
                pool.result(ref)
            time.sleep(POLL_S)
        return (time.process_time() - busy) / (time.perf_counter() - began)
    finally:
        pool.close()


def driver(seconds: float) -> None:
    """Print what one more player costs the driver."""
    with tempfile.TemporaryDirectory() as project, bray.init(project, "idle", runtime="ray"):
        spent = {players: driver_s(players, seconds) for players in (FEW, MANY)}
    each = (spent[MANY] - spent[FEW]) / (MANY - FEW)
    line = {"players": list(spent), "busy_cores": [round(s, 4) for s in spent.values()]}
    print(json.dumps(line | {"driver_us": round(1e6 * each)}))


def benchmark(options: Namespace, report: Report) -> None:
    """Compare, or measure the driver."""
    if options.only == "driver":
        driver(options.seconds)
        return
    there = len(os.sched_getaffinity(0))
    sizes = sorted({1, 2, options.cores or 2})
    for size in sizes:
        if size > there:
            print(json.dumps({"cores": size, "unproven": f"there are {there} cores here"}))
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / "appo.yaml"
        own.write_text(DEFAULT)
        template = options.template or str(own)
        possible = [size for size in sizes if size <= there]
        compare(template, options.overrides, possible, options.seconds)


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        argument("--template", help="by default APPO on CartPole"),
        argument("overrides", nargs="*", metavar="key=value"),
        argument("--cores", type=int, help="one more size; by default 1 and 2 alone"),
        argument("--only", choices=("driver",)),
        seconds=10.0,
    )
