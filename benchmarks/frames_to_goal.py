"""Frames that a recipe needs until its goal is confirmed, seed by seed.

    python benchmarks/frames_to_goal.py ppo CartPole-v1 --goal 475 --seeds 1 2 3 4 5 6
    python benchmarks/frames_to_goal.py rl_imitation CartPole-v1 demonstrations=DEMOS --goal 475

A run is evaluated from the start, every fiftieth of `--max-frames`: 100 episodes by the most likely
actions. It ends with the second of two evaluations one after the other that reach the goal: one
alone may be luck. Prints the evaluations of each seed, its frames, and the median of these.
"""

from __future__ import annotations

import argparse
import importlib
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import yaml

import bray
from bray.template import GoalPart
from bray_core.config import from_mapping


class Confirmed(Exception):
    """Two evaluations one after the other reached the goal."""


class Curve:
    """The evaluations of a run; it ends the run when the goal is confirmed."""

    def __init__(self, goal: float) -> None:
        self.points: list[tuple[int, float]] = []
        self._goal = goal

    def __call__(self, figures: Mapping[str, float], save: Callable[[], None]) -> None:
        """Take the figures of a run."""
        if "evaluation_return" in figures:
            self.points.append((int(figures["frames"]), figures["evaluation_return"]))
        if self.is_confirmed:
            raise Confirmed

    @property
    def is_confirmed(self) -> bool:
        """Whether the last two evaluations reached the goal."""
        last = [value for _, value in self.points[-2:]]
        return len(last) == 2 and min(last) >= self._goal


def frames_to_goal(
    name: str, task: str, settings: Mapping[str, Any], goal: float, max_frames: int, seed: int
) -> float:
    """Run a recipe; print its evaluations; return the frames, ∞ where it gave up."""
    recipe = importlib.import_module(f"bray.recipes.{name}")
    config, curve = from_mapping(settings, recipe.Config), Curve(goal)
    unreachable = GoalPart(episode_return=math.inf, evaluate_at=-math.inf, max_frames=max_frames)
    with tempfile.TemporaryDirectory() as project:
        try:
            with bray.init(project, "trial") as run:
                run.listen(curve)
                recipe.train(run, task, config, goal=unreachable, seed=seed)
        except Confirmed:
            pass
    frames = curve.points[-1][0] if curve.is_confirmed else math.inf
    print(f"seed {seed}: {frames:,} frames:", " ".join(f"{mean:.0f}" for _, mean in curve.points))
    return frames


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the seeds, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("task")
    parser.add_argument("settings", nargs="*", metavar="key=value")
    parser.add_argument("--goal", type=float, required=True)
    parser.add_argument("--max-frames", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    options = parser.parse_intermixed_args(arguments)
    torch.set_num_threads(1)
    settings = {name: yaml.safe_load(v) for name, _, v in (s.partition("=") for s in options.settings)}
    frames = [
        frames_to_goal(
            options.recipe, options.task, settings, options.goal, options.max_frames, seed
        )
        for seed in options.seeds
    ]
    print(f"median {np.median(frames):,.0f} frames of seeds {options.seeds}")


if __name__ == "__main__":
    main()
