"""Atari on a machine with a GPU: frames a second by cores, and Pong from nothing.

    uv run python -m benchmarks.gpu.atari               # 1, 4, 16 cores, then more games
    uv run python -m benchmarks.gpu.atari --pong        # one run of so many seconds, with its curve

Local runs of `bray train atari`: the emulators have the cores, the device plays and learns.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

from benchmarks.gpu.device import DEVICE
from benchmarks.harness import Report, argument, main
from benchmarks.training.atari import CORES, pinned

SMALL = ("num_envs=8", "env_threads=1", "segment_length=16", "precision=fp32", "trainer_threads=1")
"""Settings of the dry run, of which a replay takes a second."""

LEARNER = ("--recipe", "pqn")
"""What learns Pong in the fewest frames, and trains the most of them a second."""
GAMES = {"cuda": ("num_envs=128",), "cpu": ("steps_per_replay=128",)}
"""Its settings on a device: 256 games at once were slower on sixteen cores."""


def train(seconds: float, device: str, cores: int, *more: str) -> dict[str, Any]:
    """Train on Pong in a process of its own that has so many cores; return its figures."""
    settings = [f"device={device}", f"env_threads={cores}"]
    settings += SMALL if device == "cpu" else ()
    with pinned(cores), tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "figures.json"
        command = [sys.executable, "-m", "benchmarks.training.atari", "training", *settings, *more]
        command += ["--seconds", str(seconds), "--json", str(answer)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return dict(json.loads(answer.read_text())["figures"])


def scaling(options: Namespace, report: Report) -> None:
    """Print frames/s on 1, 4, 16 cores."""
    counts = [count for count in (1, 4, 16, 64) if count <= CORES]
    counts = counts if options.device == "cuda" else counts[:1]
    runs: dict[str, tuple[int, tuple[str, ...]]] = {f"{n} cores": (n, ()) for n in counts}
    if options.device == "cuda":
        more = (*GAMES["cuda"], *LEARNER)
        runs[" ".join([f"{counts[-1]} cores,", *more])] = counts[-1], more
    rates = {}
    for name, (count, more) in runs.items():
        found = train(options.seconds / len(runs) / 4, options.device, count, *more)
        rates[name] = [float(found["frames_per_s"])]
        print(f"{name}: {rates[name][0]:,.0f} frames/s", flush=True)
    report.table(f"Pong, training, {options.device}", rates, unit="frames/s", base="1 cores")


def pong(options: Namespace, report: Report) -> None:
    """Print the mean return of training as it rises."""
    with tempfile.TemporaryDirectory() as folder:
        curve = Path(folder) / "curve.json"
        more = (*GAMES[options.device], *LEARNER, "--history", str(curve))
        found = train(options.seconds, options.device, CORES, *more)
        history = json.loads(curve.read_text())
    report.figure("pong", found)
    report.figure("pong, seconds, frames, mean return", history)
    print(f"Pong, {found['seconds']:.0f} s: {found['frames']:,.0f} frames, "
          f"mean return {found['mean_return']:.1f}")  # fmt: skip
    for seconds, frames, mean in history:
        print(f"  {seconds:6.0f} s {frames:12,.0f} frames {mean:7.2f}")


def benchmark(options: Namespace, report: Report) -> None:
    """Measure what the command line says."""
    (pong if options.pong else scaling)(options, report)


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        argument("--device", **DEVICE),
        argument("--pong", action="store_true", help="one run with its curve"),
        seconds=60.0,
    )
