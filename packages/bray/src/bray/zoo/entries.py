"""The zoo: settings that tasks were trained with, read from the files in `tasks`."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from statistics import median
from typing import Any

import msgspec

from bray_core.errors import NotFoundError
from bray_core.settings.choice import closest
from bray_core.settings.settings_tree import parse


@dataclass(frozen=True, kw_only=True, slots=True)
class ZooFigures:
    """What settings were measured to reach."""

    page: str
    """Page of the benchmarks that has the figures, and the command that repeats them."""
    measured: datetime.date
    """Day on which they were written down."""
    seeds: tuple[int, ...]
    """Seed of each run."""
    returns: tuple[float, ...] = ()
    """Mean return of the evaluation that ended each run."""
    note: str = ""
    """What the page says where returns do not."""
    frames: int | None = None
    """Median of the environment steps of the runs; None where the page does not say it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ZooEntry:
    """Settings of an algorithm for a task."""

    algorithm: str
    """Name of the algorithm."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings that are not the algorithm's defaults."""
    goal: dict[str, Any] = field(default_factory=dict)
    """Settings of the goal, see `bray.goal.Goal`."""
    figures: ZooFigures | None = None
    """What was measured; None: nothing was, and these are settings without a promise."""
    name: str = ""
    """Name in the zoo: the task, and behind a slash the algorithm where it is not the first."""
    task: str = ""
    """What is played."""
    packages: tuple[str, ...] = ()
    """Distributions that the task needs besides bray."""

    def overrides(self) -> list[str]:
        """Return the settings as the command line writes them."""
        written = self.settings | {f"goal.{key}": value for key, value in self.goal.items()}
        return [f"{key}={json.dumps(value)}" for key, value in written.items()]

    def command(self) -> str:
        """Return the command that trains with these settings."""
        return f"bray train --zoo {self.name}"

    def to_json(self) -> dict[str, Any]:
        """Return the entry as plain data."""
        plain: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        return plain

    def reached(self) -> str:
        """Return what was reached, in words."""
        if self.figures is None:
            return "not measured"
        returns = self.figures.returns
        if not returns:
            return self.figures.note
        seeds = "one seed" if len(returns) == 1 else f"{len(returns)} seeds"
        return f"{median(returns):g} ({seeds})"


@dataclass(frozen=True, kw_only=True, slots=True)
class _TaskFile:
    """One file of the zoo: a task and its entries, the best first."""

    task: str
    entries: tuple[ZooEntry, ...]
    packages: tuple[str, ...] = ()

    def named(self) -> list[ZooEntry]:
        """Return the entries with what their file says of them."""
        return [
            replace(
                entry,
                name=f"{self.task}/{entry.algorithm}" if number else self.task,
                task=self.task,
                packages=self.packages,
            )
            for number, entry in enumerate(self.entries)
        ]


@cache
def entries() -> Mapping[str, ZooEntry]:
    """Return all entries by name, in the order of their tasks."""
    files = resources.files("bray") / "zoo" / "tasks"
    read = [
        msgspec.convert(parse(file.read_text(), file.name).plain(), _TaskFile, strict=False)
        for file in files.iterdir()
        if file.name.endswith(".yaml")
    ]
    ordered = sorted(read, key=lambda file: file.task.rpartition(":")[2].lower())
    return {entry.name: entry for file in ordered for entry in file.named()}


def find(name: str) -> ZooEntry:
    """Return an entry.

    Args:
        name: the task, such as `HalfCheetah-v5`, or task and algorithm, such as `CartPole-v1/dqn`;
            the module before a colon may be left out, and case does not matter.

    Raises:
        NotFoundError: there is none; names the closest.
    """
    known = entries()
    if name in known:
        return known[name]
    spoken = {_spoken(other): entry for other, entry in known.items()}
    spoken |= {f"{_spoken(entry.task)}/{entry.algorithm}": entry for entry in known.values()}
    if (found := spoken.get(_spoken(name))) is not None:
        return found
    near = closest(name, list(known))
    raise NotFoundError(f"zoo: no settings for {name!r}{near}: see `bray zoo list`")


def of_task(entry: ZooEntry) -> list[ZooEntry]:
    """Return all entries of an entry's task."""
    return [other for other in entries().values() if other.task == entry.task]


def _spoken(name: str) -> str:
    return name.rpartition(":")[2].lower()
