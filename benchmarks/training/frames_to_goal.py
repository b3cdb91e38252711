"""Frames that a recipe needs until its goal is confirmed, seed by seed.

    python -m benchmarks.training.frames_to_goal ppo CartPole-v1 --goal 475 --seeds 1 2 3 4 5 6
    python -m benchmarks.training.frames_to_goal rl_imitation CartPole-v1 \\
        demonstrations=DEMOS --goal 475

Every 2,048 frames from the start, 100 episodes are played by the most likely actions, side by side
in this process (a gamecore over the wire costs ten times the training). A run ends with the second
of two evaluations one after the other that reach the goal: one alone may be luck. For recipes of
policies with `logits`. Prints the evaluations of each seed, its frames, and their median.
"""

from __future__ import annotations

import json
import math
import tempfile
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from benchmarks.harness import Report, argument, main

import bray
from bray.goal import Goal
from bray.training.algorithm import load_algorithm
from bray_core.settings.settings_tree import parse, unwrap

EVERY, EPISODES = 2_048, 100


class Confirmed(Exception):
    """Two evaluations one after the other reached the goal."""


class Curve:
    """Evaluates a run as it goes, and ends it when the goal is confirmed."""

    def __init__(self, run: bray.Run, task: str, goal: float, seed: int) -> None:
        self.returns: list[float] = []
        self._task = task
        self._goal = goal
        self._seed = seed
        self._make_model, run.model = run.model, self._model  # type: ignore[method-assign]
        run.listen(self._look)

    @property
    def frames(self) -> float:
        """When the goal was confirmed; ∞: it was not."""
        reached = [mean >= self._goal for mean in self.returns[-2:]]
        return EVERY * len(self.returns) if reached == [True, True] else math.inf

    def _model(self, name: str, module: Any, *rest: Any, **more: Any) -> Any:
        self._module, self._made = module, self._make_model(name, module, *rest, **more)
        return self._made

    def _look(self, figures: Mapping[str, float], save: Callable[[], None]) -> None:
        if figures["frames"] < EVERY * (len(self.returns) + 1):
            return
        state = {
            name: torch.from_numpy(leaf.copy()) for name, leaf in self._made.weights()[1].items()
        }
        self.returns.append(self._evaluate(state))
        if self.frames < math.inf:
            raise Confirmed

    @torch.no_grad()
    def _evaluate(self, state: dict[str, torch.Tensor]) -> float:
        environments = gymnasium.make_vec(self._task, EPISODES)
        observation, _ = environments.reset(seed=self._seed + 1_000_000)
        total, goes_on = np.zeros(EPISODES), np.ones(EPISODES, bool)
        while goes_on.any():
            seen = torch.from_numpy(np.asarray(observation, np.float32))
            outputs = torch.func.functional_call(self._module, state, (seen,))
            action = outputs["logits"].argmax(-1).numpy()
            observation, reward, terminated, truncated, _ = environments.step(action)
            total += reward * goes_on
            goes_on &= ~(terminated | truncated)
        environments.close()
        return float(total.mean())


def frames_to_goal(
    name: str, task: str, settings: Mapping[str, Any], goal: float, max_frames: int, seed: int
) -> float:
    """Run a recipe; print its evaluations; return the frames, ∞ where it gave up."""
    algorithm = load_algorithm(name).of(task, **settings)
    never = Goal(evaluate_at=math.inf, max_frames=max_frames, evaluation_episodes=1)
    with tempfile.TemporaryDirectory() as project:
        try:
            with bray.init(project, "trial") as run:
                curve = Curve(run, task, goal, seed)
                algorithm.train(run, goal=never, seed=seed)
        except Confirmed:
            pass
    curves = " ".join(f"{mean:.0f}" for mean in curve.returns)
    print(f"{name} seed {seed}: {curve.frames:,} frames: {curves}", flush=True)
    return curve.frames


def _read(text: str, name: str) -> Any:
    """Return the value of a setting; YAML takes `2e-3` for a word, and JSON for a number."""
    try:
        return json.loads(text)
    except ValueError:
        return unwrap(parse(text, name))


def benchmark(options: Namespace, report: Report) -> None:
    """Run the seeds, one after the other."""
    torch.set_num_threads(1)
    pairs = (setting.partition("=") for setting in options.settings)
    settings = {name: _read(value, name) for name, _, value in pairs}
    frames = [
        frames_to_goal(
            options.recipe, options.task, settings, options.goal, options.max_frames, seed
        )
        for seed in options.seeds
    ]
    print(f"median {np.median(frames):,.0f} frames of seeds {options.seeds}")


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        argument("recipe"),
        argument("task"),
        argument("settings", nargs="*", metavar="key=value"),
        argument("--goal", type=float, required=True),
        argument("--max-frames", type=int, default=100_000),
        argument("--seeds", type=int, nargs="+", default=[1, 2, 3]),
    )
