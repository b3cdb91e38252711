"""Training on an ALE game with bray and with its peers, in rounds, each in its own environment.

    python -m benchmarks.training.atari_peers                            # all, 3 rounds of 120 s
    uv run python -m benchmarks.training.atari_peers --only bray,sb3 --rounds 1 --seconds 40
    uv run python -m benchmarks.training.atari_peers --epochs 1                 # a pass a sample
    uv run python -m benchmarks.training.atari_peers --commands                 # what it would run

In a round one runs after the other, and every round begins with another: a figure is the median
of the rounds. A frame is one decision of the agent. Rates are of the time after the first update;
`start` is what went before. A first, uncounted call installs a peer's environment. What each peer
trains with stands in `peers/README.md`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
from argparse import Namespace
from typing import Any

from benchmarks.harness import PEERS, Report, argument, main

TORCH = "torch==2.15.0"
ALE = ("ale-py==0.12.1", "gymnasium==1.4.0", "numpy==2.4.6")
OPENCV = "opencv-python-headless==5.0.0.93"
PACKAGES: dict[str, tuple[str, ...]] = {
    "sample_factory": (TORCH, "sample-factory==2.1.1", "ale-py==0.10.2", "setuptools<81"),
    "rllib": (TORCH, "ray[rllib]==2.60.0", "ale-py==0.12.1", "gymnasium==1.2.2", OPENCV),
    "sb3": (TORCH, "stable-baselines3==2.9.2", *ALE, OPENCV),
    "cleanrl": (TORCH, *ALE),
    "torchrl": (TORCH, "torchrl==0.14.1", "tensordict==0.14.3", *ALE),
    "tianshou": (TORCH, "tianshou==2.0.1", "envpool==1.2.5", *ALE, OPENCV),
    "pufferlib": ("torch==2.9.0", "pufferlib-core==3.0.23", *ALE, OPENCV),
}
MODULES = {"rllib": "ray.rllib", "sb3": "stable_baselines3", "cleanrl": "torch"}
"""What is imported to see whether a peer is there, where it is not named like the peer."""
OURS = {"bray": "local", "bray_ray": "ray"}
"""What bray runs as, and its runtime."""
ENVIRONMENT = {"VIRTUAL_ENV": "", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
INSTALL_S = 1800
START_S = 600
"""How long a peer may take to begin and to end, beside the seconds it trains."""


def python(name: str) -> list[str]:
    """Return the interpreter that runs bray or a peer, in an environment of its own."""
    if name in OURS:
        return [sys.executable]
    uv = ["uv", "run", "--quiet", "--no-project", "--python", sys.executable]
    return [*uv, *(part for package in PACKAGES[name] for part in ("--with", package)), "python"]


def command(name: str, options: Namespace, seed: int) -> list[str]:
    """Return what trains once with bray or a peer."""
    settings = ["--game", options.game, "--seconds", str(options.seconds), "--seed", str(seed)]
    if name in OURS:
        overrides = [f"epochs={options.epochs}"] if options.epochs else []
        settings += ["--runtime", OURS[name], "--json"]
        return [*python(name), "-m", "benchmarks.training.atari", "training", *overrides, *settings]
    if options.epochs and name != "rllib":  # IMPALA passes once
        settings += ["--epochs", str(options.epochs)]
    return [*python(name), str(PEERS / f"atari_{name}.py"), *settings, "--json"]


def call(words: list[str], limit_s: float) -> tuple[str, str]:
    """Run a command in a session of its own; return its output and why it failed, if it did."""
    environment = {**os.environ, **ENVIRONMENT}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            words, stdout=out, stderr=errors, text=True, env=environment, start_new_session=True
        )
        reason = ""
        try:
            if process.wait(limit_s):
                errors.seek(0)
                last = [line for line in errors.read().splitlines() if line.strip()][-1:]
                reason = f"ended with {process.returncode}: {' '.join(last)[:300]}"
        except subprocess.TimeoutExpired:
            reason = f"not done after {limit_s:.0f} s"
        finally:
            end(process)
        out.seek(0)
        return out.read(), reason


def end(process: subprocess.Popen[str]) -> None:
    """End a command with all that it started and left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def install(name: str) -> str:
    """Build a peer's environment and import it once; return why it failed, if it did."""
    module = MODULES.get(name, name)
    return call([*python(name), "-c", f"import {module}"], INSTALL_S)[1]


def train(name: str, options: Namespace, seed: int) -> dict[str, Any]:
    """Train once; return the figures, or the reason why there are none."""
    output, reason = call(command(name, options, seed), options.seconds + START_S)
    try:
        figures = json.loads(output.strip().splitlines()[-1])
        return {"name": name, "round": seed, **figures}  # a fault at its end spoils no figure
    except (IndexError, json.JSONDecodeError):
        return {"name": name, "round": seed, "error": reason or "no JSON line was printed"}


def median(runs: list[dict[str, Any]], key: str) -> float | None:
    """Return the median of a figure over the rounds that have it."""
    found = [run.get(key) for run in runs]
    values = [value for value in found if value is not None and math.isfinite(value)]
    return statistics.median(values) if values else None


def table(runs: dict[str, list[dict[str, Any]]]) -> None:
    """Print the medians, and the ratio of bray, as what it is faster, to each peer."""
    keys = ("frames_per_s", "trained_per_s", "start_s", "memory_mb", "mean_return")
    ours = max((median(runs.get(name, []), "frames_per_s") or 0.0) for name in OURS)
    print(f"\n{'':16}" + "".join(f"{key:>15}" for key in keys) + "   bray / peer  rounds  epochs")
    for name, figures in runs.items():
        medians = [median(figures, key) for key in keys]
        line = "".join(f"{'–':>15}" if value is None else f"{value:15,.1f}" for value in medians)
        theirs = medians[0]
        ratio = f"{ours / theirs:13.2f}" if ours and theirs and name not in OURS else f"{'':13}"
        good = [run for run in figures if "error" not in run]
        epochs = good[0].get("epochs", "") if good else ""
        print(f"{name:16}{line} {ratio}  {len(good):>3} of {len(figures)}  {epochs:>6}")
    for name, figures in runs.items():
        for error in sorted({run["error"] for run in figures if "error" in run}):
            print(f"  {name}: {error}")


NAMES = [*OURS, *PACKAGES]


def benchmark(options: Namespace, report: Report) -> None:
    """Install, run the rounds and print the table."""
    chosen = options.only.split(",")
    if unknown := set(chosen) - set(NAMES):
        raise SystemExit(f"--only: expected some of {', '.join(NAMES)}, got {', '.join(unknown)}")
    if options.commands:
        prefix = " ".join(f"{key}={shlex.quote(value)}" for key, value in ENVIRONMENT.items())
        for name in chosen:
            print(f"{prefix} {shlex.join(command(name, options, 1))}")
        return
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in chosen}
    for name in chosen:
        if name not in OURS and (reason := install(name)):
            runs[name].append({"name": name, "error": f"could not be installed: {reason}"})
            print(json.dumps(runs[name][-1]), flush=True)
    ready = [name for name in chosen if not runs[name]]
    for number in range(options.rounds):
        first = number % max(len(ready), 1)
        for name in ready[first:] + ready[:first]:
            runs[name].append(train(name, options, seed=number + 1))
            print(json.dumps(runs[name][-1]), flush=True)
    table(runs)


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        argument("--only", default=",".join(NAMES), help="comma-separated names"),
        argument("--game", default="pong"),
        argument("--epochs", type=int, help="of all that have them; default: their own"),
        argument("--commands", action="store_true", help="print the commands, run none"),
        rounds=3,
        seconds=120,
    )
