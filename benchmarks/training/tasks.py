"""Do tasks that nobody tuned for learn with default settings? bray beside Stable-Baselines3's own.

Each task is trained with three seeds for a budget of frames; the figure is the mean return of 100
evaluation episodes. A random policy's is beside it.

    uv run python -m benchmarks.training.tasks                       # all: hours on two cores
    uv run python -m benchmarks.training.tasks --only FrozenLake-v1 --seeds 1
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.harness import PEERS, Report, argument, main

from bray.zoo.entries import ZooEntry, find

NAMES = (
    "FrozenLake-v1",
    "Taxi-v4",
    "CliffWalking-v1",
    "Blackjack-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "BipedalWalker-v3",
    "CarRacing-v3",
    "minigrid:MiniGrid-DoorKey-5x5-v0",
    "highway_env:highway-v0",
    "HalfCheetah-v5",
    "Hopper-v5",
    "gymnasium_robotics:FetchReach-v4",  # 1.4.2 does not make FetchReach with a MuJoCo of today
)
"""Names of the tasks in bray's zoo, which has their algorithms, settings and frames."""
EPISODES = 100
_RANDOM = """
import sys, gymnasium, importlib, numpy as np
module, _, task = sys.argv[1].rpartition(":")
if module: gymnasium.register_envs(importlib.import_module(module))
env = gymnasium.make(task); env.action_space.seed(1); returns = []
for episode in range(int(sys.argv[2])):
    env.reset(seed=episode); total = 0.0; over = False
    while not over:
        _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        total += reward; over = terminated or truncated
    returns.append(total)
print(np.mean(returns))
"""


def frames_of(task: ZooEntry) -> int:
    """Return the budget of a task."""
    return int(task.goal["max_frames"])


def bray(task: ZooEntry, seed: int, more: Sequence[str] = ()) -> float:
    """Train with bray's command and return the evaluation's mean return."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["bray", "train", "--zoo", task.name, *more, "--seed", str(seed), "--json"]
        command += ["--episodes", str(EPISODES), "--project", folder]
        return _last(_with(task.packages, command), "evaluation_return")


def sb3(task: ZooEntry, seed: int) -> float:
    """Train with Stable-Baselines3's defaults and return the evaluation's mean return."""
    command = [
        "python",
        str(PEERS / "sb3_task.py"),
        task.algorithm,
        task.name,
        "--frames",
        str(frames_of(task)),
    ]
    packages = ("stable-baselines3", *task.packages)
    return _last(_with(packages, [*command, "--seed", str(seed)]), "evaluation_return")


def _told(task: ZooEntry, train: Callable[..., float], seed: int, *more: Any) -> float:
    """Train, and tell the figure at once: a table of three seeds takes its time."""
    reached = train(task, seed, *more)
    print(f"{task.name}, {train.__name__}, seed {seed}: {reached:.4g}", file=sys.stderr, flush=True)
    return reached


def chance(task: ZooEntry) -> float:
    """Return the mean return of random actions."""
    command = ["python", "-c", _RANDOM, task.name, "20"]
    return float(_output(_with(task.packages, command)).split()[-1])


def _with(packages: Sequence[str], command: Sequence[str]) -> list[str]:
    found = [part for package in packages for part in ("--with", package)]
    return ["uv", "run", *found, *command]


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "SDL_VIDEODRIVER": "dummy"}
    )
    if not done.stdout.strip():
        raise SystemExit(f"{' '.join(command)}: {done.stderr[-1500:]}")
    return done.stdout


def _last(command: Sequence[str], figure: str) -> float:
    return float(json.loads(_output(command).splitlines()[-1])[figure])


def benchmark(options: Namespace, report: Report) -> None:
    """Train the tasks and print a table of each."""
    wanted = set(options.only.split(",")) - {""}
    for task in map(find, NAMES):
        if wanted and task.name not in wanted:
            continue
        seeds = range(options.first, options.first + options.seeds)
        found = {f"bray {task.algorithm}": [_told(task, bray, s, options.set) for s in seeds]}
        if options.peer:
            try:
                found[f"sb3 {task.algorithm}"] = [_told(task, sb3, seed) for seed in seeds]
            except SystemExit as refused:  # Stable-Baselines3 takes no Tuple, such as Blackjack's
                print(refused, file=sys.stderr)
        found["random"] = [chance(task)]
        report.table(f"{task.name} after {frames_of(task):,} frames", found, unit="mean return")


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        argument("--only", default="", help="tasks, by names with commas between"),
        argument("--seeds", type=int, default=3, help="number of seeds of each"),
        argument("--first", type=int, default=1, help="the first seed"),
        argument("--peer", action="store_true", help="train Stable-Baselines3, too"),
        argument("--set", nargs="*", default=[], help="settings of bray that are no defaults"),
    )
