"""The subcommands `train`, `recipe` and `new`. Heavy imports wait for `run`."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from bray.launch import Launch, add_arguments
from bray.recipe_command import names, run
from bray_core.cli import Command


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _add_train(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("template", help="a template's name (cartpole) or a YAML file")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="such as trainer.learning_rate=3e-4"
    )
    add_arguments(parser, "the template's name")


def _train(options: argparse.Namespace) -> int:
    from bray import template

    launch = Launch.of(options, Path(options.template).stem)
    loaded = template.load(options.template, options.overrides)  # before anything slow
    from bray.train import train

    return train(loaded, launch)


def _add_recipe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", help=f"one of {', '.join(names())}")
    parser.add_argument("task", help="a Gymnasium id; of teams and of games of two: see the README")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="settings, such as learning_rate=3e-4"
    )
    parser.add_argument(
        "--goal", type=float, required=True, help="mean return that an evaluation must reach"
    )
    parser.add_argument(
        "--evaluate-at",
        type=float,
        help="mean training return from which evaluations start; by default the goal",
    )
    parser.add_argument("--episodes", type=int, default=100, help="of an evaluation")
    parser.add_argument(
        "--max-frames", type=int, default=500_000, help="steps after which training gives up"
    )
    add_arguments(parser, "recipe, task and seed")


def _recipe(options: argparse.Namespace) -> int:
    from bray.template import GoalPart

    goal = GoalPart(
        episode_return=options.goal,
        evaluate_at=options.goal if options.evaluate_at is None else options.evaluate_at,
        max_frames=options.max_frames,
        evaluation_episodes=options.episodes,
    )
    task = options.task.rpartition(":")[2]
    trial = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{options.recipe}-{task}-{options.seed}")
    launch = Launch.of(options, trial)
    return run(options.recipe, options.task, options.overrides, goal, launch)


def _add_new(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", type=Path, help="the file to write, such as mine.yaml")
    parser.add_argument("--template", default="cartpole", help="what to start from")


def _new(options: argparse.Namespace) -> int:
    from bray.template import path_of
    from bray_core.errors import AlreadyExistsError

    target = options.name if options.name.suffix else options.name.with_suffix(".yaml")
    text = path_of(options.template).read_text()
    try:
        with target.open("x") as file:
            file.write(text)
    except FileExistsError:
        raise AlreadyExistsError(f"name: {target} exists already: choose another") from None
    _say(f"wrote {target}: edit it, then `bray train {target}`")
    return 0


recipe = Command("recipe", "train by a recipe on a task of your choice", _add_recipe, _recipe)
train = Command("train", "train a template until it reaches its goal", _add_train, _train)
new = Command("new", "write a template's YAML for you to change", _add_new, _new)
