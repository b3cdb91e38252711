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
from typing import Any, NamedTuple

from benchmarks.harness import PEERS, Report, argument, main


class Task(NamedTuple):
    """What is trained, and for how long."""

    name: str
    algorithm: str
    frames: int
    packages: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()


_ROBOTICS = ("gymnasium-robotics", "mujoco<3.6")
"""gymnasium-robotics 1.4.2 does not make FetchReach with a MuJoCo of today."""
_NORMALISED = ("normalize_observation=true", "normalize_reward=true")
TASKS = [
    Task("FrozenLake-v1", "ppo", 200_000),
    Task("Taxi-v4", "ppo", 500_000),
    Task("CliffWalking-v1", "dqn", 100_000),
    Task("Blackjack-v1", "ppo", 200_000),
    Task("MountainCar-v0", "dqn", 150_000),
    Task("MountainCarContinuous-v0", "sac", 10_000),
    Task("BipedalWalker-v3", "ppo", 1_000_000, ("gymnasium[box2d]",)),
    Task("CarRacing-v3", "ppo", 200_000, ("gymnasium[box2d]",)),
    Task("minigrid:MiniGrid-DoorKey-5x5-v0", "ppo", 300_000, ("minigrid",), ("memory_size=64",)),
    Task("highway_env:highway-v0", "ppo", 20_000, ("highway-env",)),
    Task("HalfCheetah-v5", "ppo", 300_000, ("gymnasium[mujoco]",), _NORMALISED),
    Task("Hopper-v5", "ppo", 300_000, ("gymnasium[mujoco]",), _NORMALISED),
    Task("gymnasium_robotics:FetchReach-v4", "sac", 8_000, _ROBOTICS, ("hindsight=4",)),
]
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


def bray(task: Task, seed: int, more: Sequence[str] = ()) -> float:
    """Train with bray's command and return the evaluation's mean return."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["bray", "train", task.algorithm, task.name, *task.settings, *more]
        command += ["--frames", str(task.frames), "--seed", str(seed), "--json"]
        command += ["goal.episode_return=null", "--episodes", str(EPISODES), "--project", folder]
        return _last(_with(task.packages, command), "evaluation_return")


def sb3(task: Task, seed: int) -> float:
    """Train with Stable-Baselines3's defaults and return the evaluation's mean return."""
    command = [
        "python",
        str(PEERS / "sb3_task.py"),
        task.algorithm,
        task.name,
        "--frames",
        str(task.frames),
    ]
    packages = ("stable-baselines3", *task.packages)
    return _last(_with(packages, [*command, "--seed", str(seed)]), "evaluation_return")


def _told(task: Task, train: Callable[..., float], seed: int, *more: Any) -> float:
    """Train, and tell the figure at once: a table of three seeds takes its time."""
    reached = train(task, seed, *more)
    print(f"{task.name}, {train.__name__}, seed {seed}: {reached:.4g}", file=sys.stderr, flush=True)
    return reached


def chance(task: Task) -> float:
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
    for task in TASKS:
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
        report.table(f"{task.name} after {task.frames:,} frames", found, unit="mean return")


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
