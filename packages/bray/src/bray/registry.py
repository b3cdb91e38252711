"""Algorithms by name, and the settings that suit a task. Imports nothing heavy.

A module of `bray.algorithms` is a `Recipe`. Where a task wants other settings than `Config()`, they
are in the module's `DEFAULTS`, by task, or by the namespace of tasks (`ALE/`).
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any, Protocol, cast

from bray import algorithms
from bray_core.errors import BrayError
from bray_core.settings.choice import check_choice

if TYPE_CHECKING:
    from bray.goal import Goal, Outcome
    from bray.run import Run


class Recipe(Protocol):
    """What every module of `bray.algorithms` has."""

    Config: type[Any]
    """Settings of the algorithm and of what plays for it, all with defaults."""

    def train(
        self, run: Run, task: str, config: Any = None, *, goal: Goal, seed: int = 1
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
