"""Do tasks that nobody tuned for learn with default settings? bray beside Stable-Baselines3's own.

Each task is trained with three seeds for a budget of frames; the figure is the mean return of 100
evaluation episodes. A random policy's is beside it. The curves are the mean returns of training
episodes.

    uv run python -m benchmarks.training.tasks                       # all: hours on two cores
    uv run python -m benchmarks.training.tasks --only FrozenLake-v1 --seeds 1
    uv run python -m benchmarks.training.tasks --only Hopper-v5/ppo --frames 1000000 --runs kept

Each run is kept in a file of the folder `--runs` as soon as it has ended, and is not repeated where
its file is there; bray's trials lie beside, and one that was cut short goes on. So hours of runs
are spread over several sittings, or over several commands at once.
`--show` trains nothing, and shows the runs that are there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import PEERS, Report, argument, main

from bray.zoo.entries import ZooEntry, find
from bray_core.metrics.json_lines import curve

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
_NEVER = "1e12"
"""A return that no task has: at the one that the task is registered with a run would end."""
_RANDOM = """
import sys, gymnasium, importlib, numpy as np
module, _, task = sys.argv[1].rpartition(":")
module = module or ("ale_py" if task.startswith("ALE/") else "")
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


Run = dict[str, Any]
"""`return` of the evaluation, `seconds` of the whole command, and the points of the `curve`."""


def bray(task: ZooEntry, seed: int, frames: int, trial: Path, more: Sequence[str] = ()) -> Run:
    """Train with bray's command, into a trial; a trial that was cut short goes on."""
    what = [str(trial)] if trial.exists() else ["--zoo", task.name, "--trial", f"{trial}"]
    command = ["bray", "train", *what, f"goal.max_frames={frames}", *more]
    command += ["--seed", str(seed), "--json", "--episodes", str(EPISODES)]
    command += ["--goal", _NEVER]
    found = _last(_with(task.packages, command))
    points = list(zip(*curve(trial, "actor/episode_return"), strict=True))
    times, _ = curve(trial, "actor/episode_return", "seconds")  # those of all launches
    seconds = max(times, default=found["seconds"])
    return {"return": found["evaluation_return"], "seconds": seconds, "curve": points}


def sb3(task: ZooEntry, seed: int, frames: int) -> Run:
    """Train with Stable-Baselines3's defaults."""
    command = ["python", str(PEERS / "sb3_task.py"), task.algorithm, task.task]
    command += ["--frames", str(frames), "--seed", str(seed)]
    if task.settings.get("normalize_observation"):
        command.append("--normalize")
    found = _last(_with(("stable-baselines3", *task.packages), command))
    points = found["curve"]
    return {"return": found["evaluation_return"], "seconds": found["seconds"], "curve": points}


def _trained(task: ZooEntry, who: str, seed: int, frames: int, options: Namespace) -> Run:
    """Train, and keep the run; read it where it was kept before."""
    path = _kept(task, who, seed, frames, options)
    if path is not None and path.exists():
        return dict(json.loads(path.read_text()))
    with tempfile.TemporaryDirectory() as passing:
        trial = Path(passing, "trial") if path is None else path.with_suffix("").absolute()
        run = (
            bray(task, seed, frames, trial, options.set)
            if who == "bray"
            else sb3(task, seed, frames)
        )
    name = f"{task.name}, {who}, seed {seed}, {frames:,} frames"
    print(f"{name}: {run['return']:.4g} in {run['seconds']:.0f} s", file=sys.stderr, flush=True)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(run))
    return run


def _kept(task: ZooEntry, who: str, seed: int, frames: int, options: Namespace) -> Path | None:
    """Return the file of a run, which need not be there; None: runs are not kept."""
    name = f"{task.name}-{who}-{frames}-{seed}".replace("/", "_").replace(":", "_")
    return None if options.runs is None else Path(options.runs, f"{name}.json")


def _is_kept(task: ZooEntry, who: str, seed: int, frames: int, options: Namespace) -> bool:
    path = _kept(task, who, seed, frames, options)
    return path is not None and path.exists()


def chance(task: ZooEntry) -> float:
    """Return the mean return of random actions."""
    command = ["python", "-c", _RANDOM, task.task, "20"]
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


def _last(command: Sequence[str]) -> Run:
    return dict(json.loads(_output(command).splitlines()[-1]))


def benchmark(options: Namespace, report: Report) -> None:
    """Train the tasks; print a table of each, and keep its curves."""
    for task in map(find, options.only.split(",") if options.only else NAMES):
        frames = options.frames or int(task.goal["max_frames"])
        seeds = range(options.first, options.first + options.seeds)
        found: dict[str, list[Run]] = {}
        for who in ("bray", "sb3") if options.peer else ("bray",):
            mine = [s for s in seeds if not options.show or _is_kept(task, who, s, frames, options)]
            if not mine:
                continue
            try:
                runs = [_trained(task, who, seed, frames, options) for seed in mine]
            except SystemExit as refused:  # Stable-Baselines3 takes no Tuple, such as Blackjack's
                if who == "bray":
                    raise
                print(refused, file=sys.stderr)
            else:
                found[f"{who} {task.algorithm}"] = runs
        returns = {name: [run["return"] for run in runs] for name, runs in found.items()}
        returns["random"] = [chance(task)]
        report.table(f"{task.name} after {frames:,} frames", returns, unit="mean return")
        curves = {name: [run["curve"] for run in runs] for name, runs in found.items()}
        report.curve(task.name, curves, x="frames", y="mean return of training episodes")


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        argument("--only", default="", help="entries of the zoo, by names with commas between"),
        argument("--frames", type=int, help="of each run, instead of the zoo's"),
        argument("--seeds", type=int, default=3, help="number of seeds of each"),
        argument("--first", type=int, default=1, help="the first seed"),
        argument("--peer", action="store_true", help="train Stable-Baselines3, too"),
        argument("--set", nargs="*", default=[], help="settings of bray that are no defaults"),
        argument("--runs", type=Path, help="folder in which runs are kept, and found"),
        argument("--show", action="store_true", help="train nothing: show the runs kept so far"),
    )
