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
import os
import shlex
import signal
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
        settings += ["--runtime", OURS[name]]
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


FIGURES = {
    "frames_per_s": ("frames a second, acting and learning", "frames/s"),
    "trained_per_s": ("samples a second that went through the learner, each pass", "samples/s"),
    "start_s": ("from the process's creation to the first update", "s"),
    "memory_mb": ("memory of all processes at the end", "MB"),
    "mean_return": ("whole games by their true score", "mean return"),
}
"""Figure of a run → what it is called in its table, and its unit."""


def tables(runs: dict[str, list[dict[str, Any]]], rounds: int, report: Report) -> None:
    """Print a table of each figure, of those who have it in every round, and what failed."""
    for key, (title, unit) in FIGURES.items():
        told = {name: [run.get(key) for run in made] for name, made in runs.items()}
        found = {
            name: values
            for name, values in told.items()
            if len(values) == rounds and None not in values
        }
        if found:
            report.table(title, found, unit=unit, base="bray" if "bray" in found else None)
    for name, made in runs.items():
        for error in sorted({run["error"] for run in made if "error" in run}):
            print(f"  {name}: {error}")


NAMES = [*OURS, *PACKAGES]


def benchmark(options: Namespace, report: Report) -> None:
    """Install, run the rounds and print the tables."""
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
    tables(runs, options.rounds, report)


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
