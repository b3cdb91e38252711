"""`bray recipe`: a recipe by its name, on a task, with settings and a goal. Imports nothing heavy.

A module of `bray.algorithms` is a `Recipe`. Where a task wants other settings than `Config()`, they
are in the module's `DEFAULTS`, by task, or by the namespace of tasks (`ALE/`).
"""

from __future__ import annotations

import importlib
import json
import logging
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol, cast

from bray import algorithms
from bray_core.errors import BrayError
from bray_core.settings.choice import check_choice

if TYPE_CHECKING:
    from bray.cli.launch import Launch
    from bray.run import Run
    from bray.templates.template import GoalPart
    from bray.training.learning import Outcome


class Recipe(Protocol):
    """What every module of `bray.algorithms` has."""

    Config: type[Any]
    """Settings of the algorithm and of what plays for it, all with defaults."""

    def train(
        self, run: Run, task: str, config: Any = None, *, goal: GoalPart, seed: int = 1
    ) -> Outcome:
        """Train until the goal is reached or its frames are used up."""
        ...


def names() -> list[str]:
    """Return the names of all recipes."""
    return sorted(module.name for module in pkgutil.iter_modules(algorithms.__path__))


def load(name: str) -> Recipe:
    """Return a recipe.

    Raises:
        ConfigError: there is none of that name; names the closest.
    """
    check_choice("recipe", name, names())
    return cast(Recipe, importlib.import_module(f"bray.algorithms.{name}"))


def defaults_of(name: str) -> dict[str, Any]:
    """Return the settings that a recipe has for a few tasks where nothing else is said."""
    return getattr(load(name), "DEFAULTS", {})


def tuned_task(name: str, task: object) -> str:
    """Return the key of a recipe's `DEFAULTS` that a task has: its name, or how it begins.

    Empty: none. A key that ends in `/` stands for all tasks of the namespace, such as `ALE/`.

    Raises:
        ConfigError: there is no such recipe.
    """
    known = defaults_of(name)
    if not isinstance(task, str):  # what a file says, not checked yet
        return ""
    if task in known:
        return task
    spaces = [key for key in known if key.endswith("/")]
    task = _id_of(task) if spaces else task
    return next((key for key in spaces if task.startswith(key)), "")


def _id_of(task: str) -> str:
    """Return the Gymnasium id of a short name, such as `Pong`; the task, if it is none."""
    if not task.isalnum():  # every id has a dash
        return task
    from bray_actor.spaces import resolve

    try:
        return resolve(task)
    except BrayError:
        return task


def defaults(name: str, task: str) -> Any:
    """Return the settings of a recipe that suit a task: its `DEFAULTS`, else its `Config()`.

    Raises:
        ConfigError: there is no such recipe.
    """
    return defaults_of(name).get(tuned_task(name, task)) or load(name).Config()


def run(
    name: str, task: str, settings: Sequence[str], goal: GoalPart, seed: int, launch: Launch
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
