"""Replay in one process: bray's beside others, inserts in chunks of 64, batches of 256.

uv run python -m benchmarks.micro.buffer_replay                            # about 15 minutes
uv run python -m benchmarks.micro.buffer_replay --observation vector --rounds 1 --seconds 0.3

Every peer runs in an environment of its own (uv fetches it), by `peers/replay_<peer>.py` and the
loop of `peers/replay_loop.py`: the same data, chunks and batches for all. In a round one peer runs
after the other; a figure is the median of the rounds, and a ratio is of figures of this run.
Observations are 8 float32 and 84 × 84 uint8, the capacity 100,000. `reverb` is asked for by name:
it needs Python 3.11 and TensorFlow, and its server listens on all interfaces (see its script).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from argparse import Namespace
from collections.abc import Mapping
from typing import Any, TypeAlias

from benchmarks.harness import PEERS, Report, argument, main

TORCH = "torch==2.15.0"
PACKAGES: dict[str, tuple[str, ...]] = {
    "numpy": ("numpy",),
    "cpprb": ("numpy", "cpprb==11.0.0"),
    "sb3": ("numpy", TORCH, "stable-baselines3==2.9.2"),
    "tianshou": ("numpy", TORCH, "tianshou==2.0.1"),
    "torchrl": ("numpy", TORCH, "torchrl==0.14.1", "tensordict==0.14.3"),
    "reverb": ("numpy==1.26.*", "dm-reverb==0.14.0", "tensorflow==2.15.*"),
}
NO_LIBRARY = ("bray", "numpy")
"""What is not counted as a peer to be ahead of."""
Runs: TypeAlias = list[dict[str, Any]]
"""What a peer printed in each round."""
CELLS = (
    "uniform insert",
    "uniform insert of 16",
    "uniform sample",
    "prioritized insert",
    "prioritized insert of 16",
    "prioritized sample",
    "prioritized update",
)


def command(peer: str) -> list[str]:
    """Return what runs a peer's script."""
    script = str(PEERS / f"replay_{peer}.py")
    if peer == "bray":
        return [sys.executable, script]
    uv = ["uv", "run", "--quiet", "--no-project", "--python", sys.executable]
    return [*uv, *(part for package in PACKAGES[peer] for part in ("--with", package)), script]


def measured(peer: str, observation: str, options: Namespace) -> dict[str, Any]:
    """Measure one peer once."""
    arguments = ["--observation", observation, "--seconds", str(options.seconds)]
    arguments += ["--capacity", str(options.capacity)]
    done = subprocess.run(
        [*command(peer), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "VIRTUAL_ENV": ""},
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {"peer": peer, "observation": observation, "error": reason[:200]}
    figures: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def tables(observation: str, runs: Mapping[str, Runs], report: Report) -> None:
    """Print a table for each cell, beside the best library of it."""
    for cell in CELLS:
        found = {
            peer: [figures[cell] / 1e3 for figures in own if cell in figures]
            for peer, own in runs.items()
        }
        samples = {peer: values for peer, values in found.items() if values}
        others = [peer for peer in samples if peer not in NO_LIBRARY]
        best = max(others, key=lambda peer: statistics.median(samples[peer]), default=None)
        unit = "thousand transitions/s"
        report.table(f"{cell}, observations: {observation}", samples, unit=unit, base=best)
    for peer, own in runs.items():
        for error in sorted({figures["error"] for figures in own if "error" in figures}):
            print(f"  {peer}: {error}")


def benchmark(options: Namespace, report: Report) -> None:
    """Run the rounds and print the tables."""
    peers = options.peers.split(",")
    unknown = set(peers) - {"bray", *PACKAGES}
    if unknown:
        raise SystemExit(f"--peers: expected some of bray, {', '.join(PACKAGES)}, got {unknown}")
    kinds = [options.observation] if options.observation else ["vector", "image"]
    for observation in kinds:
        runs: dict[str, Runs] = {peer: [] for peer in peers}
        for _ in range(options.rounds):
            for peer in peers:
                runs[peer].append(measured(peer, observation, options))
                print(json.dumps(runs[peer][-1]), flush=True)
        tables(observation, runs, report)


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        argument("--peers", default="bray,numpy,cpprb,sb3,tianshou,torchrl"),
        argument("--observation", choices=("vector", "image")),
        argument("--capacity", type=int, default=100_000),
        rounds=3,
        seconds=1.0,
    )
