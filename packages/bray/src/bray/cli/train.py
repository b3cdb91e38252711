"""`bray train`: run a template, or an algorithm on a task, and export the best version."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import textwrap
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from bray.cli.launch import Launch, add_arguments
from bray_core.cli import main
from bray_core.command import Command, is_setting, whole_number
from bray_core.errors import ConfigError, ExportError
from bray_core.files.trial_folders import CONFIG, as_name, trial_name, trial_of
from bray_core.process.garbage import paused_garbage_collection

if TYPE_CHECKING:
    from bray.goal import Goal, Outcome
    from bray.templates.template import Template
    from bray_model import ExportReport

_EXAMPLES = """examples:
  bray train cartpole                                   a template that ships with bray
  bray train walker.yaml trainer.learning_rate=3e-4     a template of yours
  bray train ppo CartPole-v1 num_envs=8 --goal 475      an algorithm and a task
  bray train trials/walker                              a trial goes on
  bray train --zoo CartPole-v1/dqn                      tuned settings, see `bray zoo list`
  bray train cartpole --seeds 5                         five trials, and one report

algorithms: {algorithms}
templates: {templates}
"""


class _HelpWithNames(argparse.RawDescriptionHelpFormatter):
    """Help texts with the names of all algorithms and templates, which only they look up."""

    def add_text(self, text: str | None) -> None:
        if text == _EXAMPLES:
            from bray import registry
            from bray.templates.shipped import names

            text = text.format(algorithms=_folded(registry.names()), templates=_folded(names()))
        super().add_text(text)


def _folded(names: list[str]) -> str:
    return textwrap.fill(", ".join(names), 76, subsequent_indent="  ", break_on_hyphens=False)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.formatter_class = _HelpWithNames
    parser.add_argument(
        "what",
        nargs="?",
        help="a template's name (cartpole), a YAML file, a trial, or an algorithm (ppo)",
    )
    parser.add_argument(
        "task", nargs="?", help="after an algorithm: what is played, such as a Gymnasium id"
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="settings, such as learning_rate=3e-4, trainer.learning_rate=3e-4 or, a list, "
        "'hidden=[64, 64]'",
    )
    parser.add_argument(
        "--zoo", metavar="NAME", help="settings of a task in the zoo, such as HalfCheetah-v5"
    )
    parser.add_argument(
        "--env", help="played in place of a template's environment, such as Breakout"
    )
    parser.add_argument(
        "--goal",
        type=float,
        help="mean return that an evaluation must reach; by default the template's, else the "
        "reward threshold that the environment is registered with, else the frames decide",
    )
    parser.add_argument(
        "--frames",
        type=whole_number,
        help="environment steps after which training gives up; by default the template's, else "
        "the algorithm's own budget",
    )
    parser.add_argument(
        "--evaluate-at",
        type=float,
        help="mean training return from which evaluations start; by default the goal",
    )
    parser.add_argument("--episodes", type=int, help="episodes of an evaluation; by default 100")
    parser.add_argument(
        "--go-on", action="store_true", help="train on also where the goal has been reached"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the outcome as one line of JSON, nothing else"
    )
    parser.add_argument(
        "--seeds",
        type=int,
        help="train so many seeds one after the other, in trials NAME-1, NAME-2 …, and report the "
        "median, the interquartile mean and the range of their returns",
    )
    add_arguments(
        parser,
        "the template's name (with --env the environment's, too), or algorithm, task and seed",
    )


def _run(options: argparse.Namespace) -> int:
    if options.zoo is not None:
        _take_from_zoo(options)
    if options.what is None:
        raise ConfigError("what: missing: name a template, such as `bray train cartpole`")
    task, settings = options.task, options.overrides
    if task is not None and is_setting(task):  # what looks like a task is a setting
        task, settings = None, [task, *settings]
    settings = [*settings, *_from_options(options)]
    if task is not None and options.env is not None:
        raise ConfigError(f"--env: is for templates; the task is {task!r} already")
    template = _template(options, task, settings)
    if task is None:
        launch = _launch_of_template(options)
    else:
        seed = template.seed if options.seeds is None else None
        launch = Launch.of(options, trial_name(options.what, task, seed))
    if template.enable == "deploy":
        return main(["serve", str(launch.project / launch.trial)])
    if options.seeds is not None:
        from bray.cli.seeds import train_seeds
        from bray.composition.whole_run import completed_goal

        def train_one(template: Template, launch: Launch, goal: Goal) -> Outcome:
            with _apart(options.json):
                return run_launch(template, launch, goal)[0]

        return train_seeds(
            template,
            launch,
            options.seeds,
            completed_goal(template),
            train_one,
            is_json=options.json,
            goes_on=options.go_on,
        )
    return train(template, launch, is_json=options.json, goes_on=options.go_on)


def _take_from_zoo(options: argparse.Namespace) -> None:
    """Set algorithm, task and settings by the zoo; what else was written goes before its settings.

    Raises:
        NotFoundError: the zoo has no such name.
        ConfigError: a template, an algorithm or an environment was named, too, or a package that
            the task needs is not installed.
    """
    from bray.zoo.entries import find

    words = [word for word in (options.what, options.task) if word is not None]
    if named := [word for word in words if not is_setting(word)] + [options.env] * bool(
        options.env
    ):
        raise ConfigError(f"--zoo: names algorithm and task already, got {named[0]!r}, too")
    entry = find(options.zoo)
    module = entry.task.rpartition(":")[0].partition(".")[0]
    if module and find_spec(module) is None:
        install = " ".join(f"'{package}'" for package in entry.packages)
        raise ConfigError(
            f"--zoo: {entry.name} needs the module {module}, which is not installed: "
            f"uv pip install {install}"
        )
    options.what, options.task = entry.algorithm, entry.task
    options.overrides = [*entry.overrides(), *words, *options.overrides]


def _template(options: argparse.Namespace, task: str | None, settings: list[str]) -> Template:
    """Read the template, or make one of an algorithm and its task; most imports come with it."""
    with paused_garbage_collection():
        from bray.templates.loading import compose, load

        if task is None:
            return load(options.what, settings, options.env)  # before what is slow
        return compose(options.what, task, settings)


def _from_options(options: argparse.Namespace) -> list[str]:
    """Return overrides for the options that are settings of a template."""
    named = {
        "seed": options.seed,
        "goal.episode_return": options.goal,
        "goal.evaluate_at": options.evaluate_at,
        "goal.max_frames": options.frames,
        "goal.evaluation_episodes": options.episodes,
    }
    found = [f"{name}={value}" for name, value in named.items() if value is not None]
    if options.goal is not None and options.evaluate_at is None:
        found.append("goal.evaluate_at=null")  # a template's is that of another goal
    return found


def _launch_of_template(options: argparse.Namespace) -> Launch:
    """Return the launch of a template: in the trial whose settings it is, or one of its name."""
    path = Path(options.what)
    trial = trial_of(path / CONFIG if (path / CONFIG).is_file() else path)
    name = trial.resolve().name
    if options.env is not None:
        name += f"-{as_name(options.env)}"
    return Launch.of(options, name, trial.parent)


def train(
    template: Template, launch: Launch, *, is_json: bool = False, goes_on: bool = False
) -> int:
    """Train until the goal is reached or the budget is used up; return the exit code.

    The trial's folder then holds checkpoints, versions, metrics, an ONNX export that has been
    compared with torch, and `result.json`. A trial that has reached its goal says so and ends.

    Args:
        template: what to run.
        launch: where to run it.
        is_json: whether the outcome is printed as one line of JSON instead of words.
        goes_on: whether a trial that has reached its goal trains on.

    Raises:
        ConfigError: the trial was trained by another algorithm, or a setting is wrong.
        ExportError: torch cannot export the policy, or the export's outputs differ from torch's.
    """
    from bray.cli.closing_message import closing_message
    from bray.composition.resumed_algorithms import check_algorithms
    from bray.composition.whole_run import already_reached, completed_goal
    from bray.trained.first_episodes import record_first_episodes
    from bray_core.trials.trial import Trial

    trial = launch.project / launch.trial
    goal = completed_goal(template)
    check_algorithms(trial, template.to_mapping())
    if not goes_on and (words := already_reached(trial, goal)):
        told = json.dumps(Trial(trial).result()) if is_json else words
        sys.stdout.write(told + "\n")
        return 0
    with _apart(is_json):
        try:
            outcome, report = run_launch(template, launch, goal)
        except ExportError as error:
            raise ExportError(
                f"{error}: what was trained is kept in {trial}, checkpoints/ and models/, and "
                "result.json says what it reached; what plays and serves it needs an export"
            ) from error
        recorded = record_first_episodes(template, trial) if report is not None else 0
    if is_json:
        sys.stdout.write(json.dumps(asdict(outcome)) + "\n")
        return 0 if outcome.reached else 1
    if report is not None:
        sys.stdout.write(report.table() + "\n")
    template = replace(template, goal=goal)
    words = closing_message(
        template, trial, outcome, is_exported=report is not None, recorded=recorded
    )
    sys.stdout.write(words + "\n")
    return 0 if outcome.reached else 1


def _apart(is_json: bool) -> AbstractContextManager[object]:
    """Let what is said beside a JSON line go to standard error, what environments print, too."""
    return contextlib.redirect_stdout(sys.stderr) if is_json else contextlib.nullcontext()


def run_launch(
    template: Template, launch: Launch, goal: Goal
) -> tuple[Outcome, ExportReport | None]:
    """Train a template where a launch says, and export the best version; see `run_template`.

    A trial that is refused, such as for an environment that there is not, leaves no folder.
    """
    from bray.composition.refused_trial import removed_if_refused
    from bray.composition.whole_run import run_template
    from bray.trained.evaluation_videos import with_videos

    with removed_if_refused(launch.project / launch.trial):
        return run_template(template, with_videos(launch.open, template), goal)


command = Command(
    "train",
    "train a template, or an algorithm on a task, until it reaches its goal",
    _add_arguments,
    _run,
)
