"""The subcommands `train`, `recipe`, `new`, `config` and `monitoring`.

Heavy imports wait for `run`.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from bray.cli.launch import Launch, add_arguments
from bray.goal import Goal
from bray.registry import defaults, names
from bray_core.cli import Command, main
from bray_core.errors import ConfigError
from bray_core.trials.trial_paths import CONFIG, trial_of


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _add_train(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("template", help="a template's name (cartpole), a YAML file, or a trial")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="such as trainer.learning_rate=3e-4"
    )
    parser.add_argument("--env", help="what is played instead, such as ALE/Breakout-v5 or Breakout")
    add_arguments(parser, "the template's name, and with --env the environment's")


def _train(options: argparse.Namespace) -> int:
    from bray.templates import template

    seed = [] if options.seed is None else [f"seed={options.seed}"]
    settings = options.overrides + seed
    loaded = template.load(options.template, settings, options.env)  # before what is slow
    launch = _launch(options)
    if loaded.enable == "deploy":
        return main(["serve", str(launch.project / launch.trial)])
    from bray.cli.train import train

    return train(loaded, launch)


def _launch(options: argparse.Namespace) -> Launch:
    """Return the launch of a template: in the trial whose settings it is, or one of its name."""
    path = Path(options.template)
    trial = trial_of(path / CONFIG if (path / CONFIG).is_file() else path)
    name = trial.resolve().name
    if options.env is not None:
        name += f"-{_as_name(options.env)}"
    return Launch.of(options, name, trial.parent)


def _as_name(text: str) -> str:
    """Return what a trial's folder may be named."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)


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

    goal = Goal(
        episode_return=options.goal,
        evaluate_at=options.goal if options.evaluate_at is None else options.evaluate_at,
        max_frames=options.max_frames,
        evaluation_episodes=options.episodes,
    )
    seed = 1 if options.seed is None else options.seed
    if seed < 0:
        raise ConfigError(f"--seed: expected 0 or more, got {seed}")
    task = options.task.rpartition(":")[2]
    trial = _as_name(f"{options.recipe}-{task}-{seed}")
    launch = Launch.of(options, trial)
    return _run_recipe(options.recipe, options.task, options.overrides, goal, seed, launch)


def _run_recipe(
    name: str, task: str, settings: Sequence[str], goal: Goal, seed: int, launch: Launch
) -> int:
    """Run a recipe; print its outcome as one line of JSON.

    Args:
        name: of the recipe.
        task: such as a Gymnasium id.
        settings: of its `Config`, as `gamma=0.9`.
        goal: of the run.
        seed: of everything random.
        launch: where it runs.

    Returns:
        0 if the goal was reached, else 1.

    Raises:
        ConfigError: anything of these is unknown or out of range.
    """
    from bray.cli.train import run_template
    from bray.templates.template import Template
    from bray_core.config import with_overrides

    config = with_overrides(defaults(name, task), settings)
    template = Template(recipe=name, environment=task, settings=config, seed=seed, goal=goal)
    outcome, _ = run_template(template, launch, _progress_on_stderr())
    sys.stdout.write(json.dumps(asdict(outcome)) + "\n")
    return 0 if outcome.reached else 1


@contextmanager
def _progress_on_stderr() -> Iterator[None]:
    """Show what recipes log as they go: INFO of this package, and worse."""
    logger, handler = logging.getLogger("bray"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _add_new(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", type=Path, help="the folder to make, such as walker")
    parser.add_argument(
        "--template", default="reinforcement", help="what to start from: a template's name"
    )


def _new(options: argparse.Namespace) -> int:
    from bray.cli.project import make_project

    made = make_project(options.name, options.template)
    _say(f"wrote {', '.join(sorted(path.name for path in made.parent.iterdir()))} in {made.parent}")
    _say(f"try: cd {made.parent} && bray train {made.name}")
    return 0


def _add_monitoring(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="where the two files are written")
    parser.add_argument(
        "targets", nargs="*", metavar="HOST:PORT", help="of runs and servers; default: this machine"
    )


def _monitoring(options: argparse.Namespace) -> int:
    from bray import monitoring

    configuration, dashboard = monitoring.write(
        options.folder, options.targets or monitoring.TARGETS
    )
    _say(f"wrote {configuration}: prometheus --config.file={configuration}")
    _say(f"wrote {dashboard}: import it in Grafana (Dashboards, New, Import)")
    return 0


def _add_config(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="verb", required=True, title="verbs")
    words = "say what is wrong with a template: file, line, column, key"
    check = verbs.add_parser("check", help=words, description=words, allow_abbrev=False)
    check.add_argument("template", help="a YAML file, a trial, or a template's name")
    check.add_argument("overrides", nargs="*", metavar="key=value", help="as for `bray train`")
    check.set_defaults(verb=_check, parser=check)
    words = "write the JSON Schema of templates, for editors"
    schema = verbs.add_parser("schema", help=words, description=words, allow_abbrev=False)
    schema.set_defaults(verb=_schema, parser=schema)


def _check(options: argparse.Namespace) -> int:
    from bray.templates import template

    loaded = template.load(options.template, options.overrides)
    _say(f"{template.path_of(options.template)}: {loaded.recipe} on {loaded.environment}: valid")
    return 0


def _schema(options: argparse.Namespace) -> int:
    from bray.templates.schema import json_schema_of_all

    _say(json.dumps(json_schema_of_all(), indent=1))
    return 0


def _config(options: argparse.Namespace) -> int:
    code: int = options.verb(options)
    return code


monitoring = Command(
    "monitoring",
    "write Prometheus' configuration and a Grafana dashboard",
    _add_monitoring,
    _monitoring,
)
recipe = Command("recipe", "train by a recipe on a task of your choice", _add_recipe, _recipe)
train = Command("train", "train a template until it reaches its goal", _add_train, _train)
new = Command("new", "make a project from a template, with tests of its own", _add_new, _new)
config = Command("config", "check a template, write the JSON Schema", _add_config, _config)
