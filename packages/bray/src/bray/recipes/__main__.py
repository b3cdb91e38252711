"""`python -m bray.recipes dqn CartPole-v1 gamma=0.98 --seed 2`: run a recipe, print its outcome."""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys
from dataclasses import asdict
from pathlib import Path

import torch
import yaml

import bray
from bray import recipes
from bray.template import GoalPart
from bray_core.config import COMMAND_LINE, from_mapping
from bray_core.errors import BrayError, ConfigError


def main(arguments: list[str] | None = None) -> int:
    """Run a recipe; return 0 if it reached its goal, 1 if not, 2 for bad input."""
    options = _parser().parse_intermixed_args(arguments)  # settings also after options
    torch.set_num_threads(1)  # the networks are small: threads would only wait for each other
    recipe = importlib.import_module(f"bray.recipes.{options.recipe}")
    try:
        config = from_mapping(_values(options.settings), recipe.Config, COMMAND_LINE)
        goal = GoalPart(
            episode_return=options.goal,
            evaluate_at=options.goal if options.evaluate_at is None else options.evaluate_at,
            max_frames=options.max_frames,
            evaluation_episodes=options.episodes,
        )
        trial = options.trial or f"{options.recipe}-{options.task.rpartition(':')[2]}".replace(
            "/", "-"
        )
        with bray.init(options.project, trial, options.runtime) as run:
            outcome = recipe.train(run, options.task, config, goal=goal, seed=options.seed)
    except BrayError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(json.dumps(asdict(outcome)) + "\n")
    return 0 if outcome.reached else 1


def _parser() -> argparse.ArgumentParser:
    names = sorted(m.name for m in pkgutil.iter_modules(recipes.__path__) if m.name[0] != "_")
    parser = argparse.ArgumentParser(prog="python -m bray.recipes", description=__doc__)
    parser.add_argument("recipe", choices=names)
    parser.add_argument("task", help="such as a Gymnasium id")
    parser.add_argument("settings", nargs="*", metavar="key=value", help="of the recipe's Config")
    parser.add_argument("--goal", type=float, required=True, help="mean return of the evaluation")
    parser.add_argument("--evaluate-at", type=float, help="training return; default: the goal")
    parser.add_argument("--episodes", type=int, default=100, help="of an evaluation")
    parser.add_argument("--max-frames", type=int, default=500_000)
    parser.add_argument("--project", type=Path, default=Path("trials"), help="folder of the trials")
    parser.add_argument("--trial", help="name of the trial's folder; default: recipe and task")
    parser.add_argument("--runtime", choices=("local", "ray"), default="local")
    parser.add_argument("--seed", type=int, default=1)
    return parser


def _values(settings: list[str]) -> dict[str, object]:
    values = {}
    for setting in settings:
        name, is_given, value = setting.partition("=")
        if not is_given:
            raise ConfigError(f"{COMMAND_LINE}: expected key=value, got {setting!r}")
        try:
            values[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ConfigError(f"{COMMAND_LINE}: {name}: expected a value, got {value!r}") from error
    return values


if __name__ == "__main__":
    raise SystemExit(main())
