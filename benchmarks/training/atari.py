"""Atari on this machine: what unit costs allow, and what sampling and training reach of it.

    python -m benchmarks.training.atari                       # unit costs, and what is reached
    python -m benchmarks.training.atari training --seconds 60 # whole training; one line of JSON

A frame is one decision: four frames of the game. `sampling`: acting with the Nature CNN and writing
segments, nothing learns. Its ceiling is the same vector environment under random actions. What the
unit costs allow is cores / (environment + inference), and of whole training cores / (environment +
inference + epochs × training), each measured alone on one core; rounds alternate, medians of all.
`benchmarks/training/atari_peers.py` has the peers.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import statistics
import subprocess
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from benchmarks.harness import Report, argument, itself, main

import bray
from bray.algorithms import appo
from bray.goal import Goal
from bray.policies.networks import make_policy
from bray.sources.environment_runners import EnvironmentRunners
from bray.sources.environments import make_environments, read_spaces
from bray.training.algorithm import Algorithm, Parts, load_algorithm
from bray.training.compute import decided
from bray.training.on_policy import segment_layout
from bray_actor.spaces import resolve
from bray_buffer import Buffer, BufferConfig
from bray_core.config import to_mapping
from bray_core.layout import Packed
from bray_core.process.machine import num_cores
from bray_core.settings.settings_tree import parse, unwrap
from bray_core.spaces import Spaces
from bray_model import Model

CORES = num_cores()
RUNTIMES = ("local", "ray")


def environment_of(game: str) -> str:
    """Return the id of a game by ALE's name (`space_invaders`)."""
    return resolve("".join(word.capitalize() for word in game.split("_")))


@contextmanager
def pinned(cores: int) -> Any:
    """Hold this process, and threads that it starts meanwhile, on so many cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def stepping(environment: str, cores: int, num_envs: int, seconds: float) -> float:
    """Return frames/s of random actions."""
    with pinned(cores):
        games = make_environments(environment, num_envs, cores)
        random = np.random.default_rng(0)
        games.reset(seed=1)
        num_actions = int(games.single_action_space.n)

        def step() -> int:
            games.step(random.integers(0, num_actions, num_envs))
            return num_envs

        rate = rate_of(step, seconds)
        games.close()
    return rate


def rate_of(step: Callable[[], int], seconds: float) -> float:
    """Return what `step` returns, a second, after three calls to warm up."""
    for _ in range(3):
        step()
    done, started = 0, time.perf_counter()
    while (took := time.perf_counter() - started) < seconds:
        done += step()
    return done / took


def algorithm_of(name: str, environment: str, overrides: list[str]) -> Algorithm[Any]:
    """Return an algorithm with the settings that suit the game, and overrides."""
    pairs = (override.partition("=") for override in overrides)
    settings = {key: unwrap(parse(value, key)) for key, _, value in pairs}
    return load_algorithm(name).of(environment, **settings)


def inferring(environment: str, settings: Parts, seconds: float) -> float:
    """Return frames/s of the policy's forward on one core, in the batches of half a worker."""
    spaces = read_spaces(environment)
    runners = EnvironmentRunners(settings.source, settings.trainer, is_local=False)
    with pinned(1), policy(spaces, settings, runners) as model:
        n = runners.model_config().max_batch_size
        observation = np.random.default_rng(0).integers(0, 255, (n, 4, 84, 84), np.uint8)
        loop = asyncio.new_event_loop()
        torch.set_num_threads(1)

        def forward() -> int:
            loop.run_until_complete(model.infer(observation, batch=True))
            return n

        rate = rate_of(forward, seconds)
        loop.close()
    return rate


def learning(environment: str, settings: Parts, seconds: float) -> float:
    """Return frames/s of one pass of training on one core: pop, loss, gradients, Adam, publish."""
    spaces = read_spaces(environment)
    settings = replace(
        settings,
        source=replace(settings.source, env_threads=1),
        trainer=replace(settings.trainer, trainer_threads=1, epochs=1),
    )
    runners = EnvironmentRunners(settings.source, settings.trainer, is_local=True)
    with pinned(1), policy(spaces, settings, runners) as model:
        layout = segment_layout(spaces, settings.agent.segment_length, 0, stack=True)
        queue = BufferConfig(
            batch_size=settings.source.num_envs, capacity=4 * settings.source.num_envs
        )
        with closing(Buffer(layout, queue)) as buffer:
            runner = runners.runner(model, buffer, 1)
            asyncio.run(runner.run(2 * settings.agent.segment_length))
            runner.close()
            batch = Packed(layout, buffer.pop().block.copy())
            module = make_policy(spaces, settings.model, seed=1)
            trainer = appo.APPOTrainer(module, buffer, model=model, part=settings.trainer, seed=1)
            frames = int(batch.tree["length"].sum())

            def train() -> int:
                buffer.push(batch)
                trainer.run(1, checkpoint=False)
                return frames

            return rate_of(train, seconds)


def policy(spaces: Spaces, settings: Parts, runners: EnvironmentRunners) -> Model:
    """Make the model that plays."""
    module = make_policy(spaces, settings.model, seed=1)
    return Model(module, spaces.example, config=runners.model_config())


def sampling(
    environment: str, settings: Parts, seconds: float, cores: int = CORES, *, halves: bool = True
) -> float:
    """Return frames/s of one process: runners that act and write segments that nobody takes.

    In halves, as on Ray, a forward has one thread; else, as in a local run, all cores.
    """
    spaces = read_spaces(environment)
    settings = replace(settings, source=replace(settings.source, env_threads=cores))
    torch.set_num_threads(1 if halves else cores)
    runners = EnvironmentRunners(settings.source, settings.trainer, is_local=not halves)
    with pinned(cores), policy(spaces, settings, runners) as model:
        layout = segment_layout(spaces, settings.agent.segment_length, 0, stack=True)
        queue = BufferConfig(
            batch_size=settings.source.num_envs, capacity=2 * settings.source.num_envs
        )
        with closing(Buffer(layout, queue)) as buffer:
            runner = runners.runner(model, buffer, 1)
            loop = asyncio.new_event_loop()
            rate = rate_of(lambda: loop.run_until_complete(runner.run(16)), seconds)
            loop.close()
            runner.close()
    return rate


def _sample(core: int, environment: str, settings: Parts, seconds: float, queue: Any) -> None:
    os.sched_setaffinity(0, {core})
    queue.put(sampling(environment, settings, seconds, 1))


def sampling_apart(environment: str, settings: Parts, seconds: float) -> float:
    """Return frames/s of as many processes as cores, one on each."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    workers = [
        context.Process(target=_sample, args=(core, environment, settings, seconds, queue))
        for core in sorted(os.sched_getaffinity(0))
    ]
    for worker in workers:
        worker.start()
    rates = [queue.get(timeout=60 + 10 * seconds) for _ in workers]
    for worker in workers:
        worker.join()
    return sum(rates)


def training_apart(options: Namespace, runtime: str) -> float:
    """Return frames/s of whole training with one pass, in a process of its own."""
    command = itself(__file__, "training", *options.overrides, "epochs=1")
    command += ["--game", options.game, "--recipe", options.recipe]
    command += ["--seconds", str(options.seconds), "--runtime", runtime]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[-1])["frames_per_s"]


def costs(options: Namespace) -> dict[str, float]:
    """Measure in rounds; return the medians."""
    environment = environment_of(options.game)
    algorithm = algorithm_of(options.recipe, environment, options.overrides)
    settings = decided(algorithm.parts, is_image=True, is_local=True)
    n, seconds = settings.source.num_envs, options.seconds / 6
    measures: dict[str, Callable[[], float]] = {
        "environment, 1 core": lambda: stepping(environment, 1, n, seconds),
        "environment, all cores": lambda: stepping(environment, CORES, n, seconds),
        "inference, 1 core": lambda: inferring(environment, settings, seconds),
        "training once, 1 core": lambda: learning(environment, settings, seconds),
        "sampling, 1 core": lambda: sampling(environment, settings, seconds, 1),
        "sampling, halves": lambda: sampling(environment, settings, seconds),
        "sampling, no halves": lambda: sampling(environment, settings, seconds, halves=False),
        "sampling, process a core": lambda: sampling_apart(environment, settings, seconds),
        **{
            f"whole training, {runtime}": partial(training_apart, options, runtime)
            for runtime in RUNTIMES
        },
    }
    rates: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(options.rounds):
        for name, measure in measures.items():
            rates[name].append(measure())
    found = {name: statistics.median(values) for name, values in rates.items()}
    acting_s = 1 / found["environment, 1 core"] + 1 / found["inference, 1 core"]
    found["allowed, sampling"] = CORES / acting_s
    found["allowed, training once"] = CORES / (acting_s + 1 / found["training once, 1 core"])
    return found


def show(found: dict[str, float], game: str) -> None:
    """Print the table."""
    ceiling, allowed = found["environment, all cores"], found["allowed, sampling"]
    print(f"{game}, {CORES} cores: frames/s, share of the ceiling, share of what is allowed")
    for name, rate in found.items():
        print(f"{name:26} {rate:8,.0f}  {rate / ceiling:5.0%}  {rate / allowed:5.0%}")
    print(f"a frame on one core: environment {1e6 / found['environment, 1 core']:.0f} us, "
          f"inference {1e6 / found['inference, 1 core']:.0f} us, "
          f"training {1e6 / found['training once, 1 core']:.0f} us a pass")  # fmt: skip
    apart = found["sampling, process a core"] / (CORES * found["sampling, 1 core"])
    for runtime in RUNTIMES:
        whole = found[f"whole training, {runtime}"] / found["allowed, training once"]
        print(f"whole training with one pass, {runtime}: {whole:.0%} of what is allowed")
    print(f"scaling from 1 core to {CORES}, a process each: efficiency {apart:.0%}")


class Enough(Exception):
    """The time or the frames of a measurement are used up."""


class Watch:
    """Follows a run from its first trained frames on, and ends it."""

    def __init__(self, seconds: float, frames: float) -> None:
        self._seconds, self._most = seconds, frames
        self._started = time.perf_counter()
        self.figures: dict[str, float] = {}
        self.history: list[tuple[float, float, float]] = []
        self._first: tuple[float, float] | None = None

    def __call__(self, figures: Any, save: Any) -> None:
        """Look at a recipe's figures; the rate is between two moments at which they had grown."""
        now, frames = time.perf_counter(), figures["frames"]
        if not frames:
            return
        if self._first is None:
            self._first = now, frames
        since_s, since = now - self._first[0], frames - self._first[1]
        if frames != self.figures.get("frames"):
            self.figures = {
                "frames": frames,
                "seconds": now - self._started,
                "start_s": self._first[0] - self._started,
                "frames_per_s": since / since_s if since_s else 0.0,
                "mean_return": figures.get("return", float("nan")),
            }
        if not self.history or now - self._started - self.history[-1][0] > 10:
            self.history.append((now - self._started, frames, self.figures["mean_return"]))
        if since_s >= self._seconds or frames >= self._most:
            self.figures["memory_mb"] = memory_mb(os.getpid())
            raise Enough


def training(options: Namespace) -> dict[str, Any]:
    """Train by a recipe for so long; return its figures."""
    environment = environment_of(options.game)
    algorithm = algorithm_of(options.recipe, environment, options.overrides)
    watch = Watch(options.seconds, options.frames or float("inf"))
    goal = Goal(episode_return=1e9, evaluate_at=1e9, max_frames=10**12)
    with tempfile.TemporaryDirectory() as project:
        trial = Path(options.project or project)
        try:
            with bray.init(trial, "atari", runtime=options.runtime) as run:
                run.listen(watch)
                algorithm.train(run, goal=goal, seed=options.seed)
        except Enough:
            pass
    if options.history:
        Path(options.history).write_text(json.dumps(watch.history))
    return {
        "peer": "bray",
        "version": version("bray"),
        "algorithm": options.recipe,
        "runtime": options.runtime,
        "game": options.game,
        "seed": options.seed,
        **watch.figures,
        "epochs": getattr(algorithm.config, "epochs", 1),
        "settings": {name: to_mapping(part) for name, part in algorithm.parts},
    }


def memory_mb(pid: int) -> float:
    """Return the proportional memory of a process and all that it started, in MB."""
    total, waiting = 0, [pid]
    while waiting:
        process = Path(f"/proc/{waiting.pop()}")
        try:
            line = next(x for x in (process / "smaps_rollup").open() if x.startswith("Pss:"))
            total += int(line.split()[1])
            for task in (process / "task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except (OSError, StopIteration):  # it has just ended
            continue
    return total / 1024


def benchmark(options: Namespace, report: Report) -> None:
    """Measure what the command line says."""
    found: dict[str, Any] = costs(options) if options.what == "sampling" else training(options)
    report.figures |= found
    if options.what == "training":
        print(json.dumps(found))
    else:
        show(found, options.game)


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        argument("what", nargs="?", choices=("sampling", "training"), default="sampling"),
        argument("overrides", nargs="*", metavar="key=value", help="settings of the recipe"),
        argument("--game", default="pong"),
        argument(
            "--recipe", choices=("appo", "ppo", "impala", "a2c", "pqn", "dqn"), default="appo"
        ),
        argument("--runtime", choices=RUNTIMES, default="local"),
        argument("--frames", type=int, help="after which training ends, if that is sooner"),
        argument("--seed", type=int, default=1),
        argument("--project", help="folder that keeps the trial; default: a temporary one"),
        argument("--history", help="file for [seconds, frames, mean return], as JSON"),
        rounds=3,
        seconds=30.0,
    )
