"""Time to a mean return of 475 on CartPole-v1 beside Stable-Baselines3's PPO, whole commands.

    uv run python -m benchmarks.training.cartpole                  # five seeds of both
    uv run python -m benchmarks.training.cartpole --peer none      # bray alone
    uv run python -m benchmarks.training.cartpole --runtime ray

From process start to exit: `bray train cartpole` with its export, and a script of
Stable-Baselines3 with RL Zoo's settings. Both stop by one rule, with the same code: an evaluation
of the most likely actions over 100 episodes reaches a mean of 475. Evaluations begin when the last
20 training episodes have a mean return of 200, and after one that falls short the next comes when
a tenth more frames were played. One function plays the evaluations of both, in their own process.

Both run on the same Python, torch, numpy and Gymnasium, whose byte code a first run has compiled
that is not counted. Runs alternate, every second seed in the opposite order, so that a noisy
machine treats both alike. CPU seconds are those of all processes of a command, user and system: on
a machine that is busy with something else, read their ratio and not that of the wall's.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.harness import PEERS, Report, argument, main

PEER_PACKAGE = "stable-baselines3==2.9.2"
EVALUATE_AT, EVALUATE_WINDOW = 200, 20
WARM_UP = ("--frames", "2048")
Figures = Mapping[str, float]
_RULE = ("--evaluate-at", str(EVALUATE_AT), "--evaluate-window", str(EVALUATE_WINDOW))
_APPENDED = (
    "import runpy, sys; sys.path.append(sys.argv[1]); del sys.argv[:2]; "
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)


def timed(command: Sequence[str], *, check: bool = True) -> tuple[dict[str, float], str]:
    """Run a command; return its wall and CPU seconds, and what it printed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, check=check, capture_output=True, text=True, env=environment)
    wall_s = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": wall_s, "cpu_s": cpu_s}, done.stdout


def bray(seed: int, runtime: str, *more: str) -> Figures:
    """Train once with bray in a fresh trial and return its figures."""
    with tempfile.TemporaryDirectory() as project:
        command = [str(Path(sys.executable).parent / "bray"), "train", "cartpole", *more]
        command += ["--project", project, "--seed", str(seed), "--runtime", runtime]
        command += [f"goal.evaluate_at={EVALUATE_AT}", f"goal.evaluate_window={EVALUATE_WINDOW}"]
        took, printed = timed(command, check=not more)
        result = json.loads((Path(project) / "cartpole" / "result.json").read_text())
    evaluations = printed.count("\nevaluation at ")
    names = ("seconds", "frames", "frames_per_s", "evaluation_return")
    return {**took, "evaluations": evaluations, **{name: result[name] for name in names}}


def sb3(seed: int, packages: str, *more: str) -> Figures:
    """Train once with Stable-Baselines3 and return its figures."""
    script = [str(PEERS / "sb3_cartpole.py"), "--seed", str(seed), *_RULE, *more]
    took, printed = timed([sys.executable, "-c", _APPENDED, packages, *script])
    return {**took, **json.loads(printed)}


def peer_packages() -> str:
    """Install the peer, and return the folder that it and what it alone needs is imported from."""
    words = ["uv", "run", "--with", PEER_PACKAGE, "python", "-c"]
    words.append("import stable_baselines3 as peer; print(peer.__path__[0])")
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    return str(Path(done.stdout.strip()).parent)


def benchmark(options: Namespace, report: Report) -> None:
    """Run both in turns, print one JSON line a run, then medians and ratios."""
    ways: dict[str, Callable[..., Figures]] = {
        "bray": lambda seed, *more: bray(seed, options.runtime, *more)
    }
    if options.peer == "sb3":
        packages = peer_packages()
        ways["sb3"] = lambda seed, *more: sb3(seed, packages, *more)
    for run in ways.values():
        run(0, *WARM_UP)
    found: dict[str, list[Figures]] = {name: [] for name in ways}
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for name in list(ways) if seed % 2 else list(reversed(ways)):
            figures = ways[name](seed)
            found[name].append(figures)
            load = round(os.getloadavg()[0], 1)
            print(json.dumps({"name": name, "seed": seed, "load": load, **figures}), flush=True)
    base = "sb3" if "sb3" in ways else None
    for key, title, unit in (
        ("wall_s", "wall, process start to exit", "s"),
        ("cpu_s", "CPU of all processes", "s"),
        ("frames", "environment steps of training", "frames"),
        ("evaluations", "evaluations of 100 episodes", "times"),
        ("evaluation_return", "last evaluation", "mean return"),
    ):
        samples = {name: [float(one[key]) for one in runs] for name, runs in found.items()}
        report.table(title, samples, unit=unit, base=base)


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        argument("--seeds", type=int, default=5),
        argument("--first-seed", type=int, default=1),
        argument("--runtime", choices=("local", "ray"), default="local"),
        argument("--peer", choices=("sb3", "none"), default="sb3"),
    )
