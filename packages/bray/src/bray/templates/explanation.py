"""What can be set of an algorithm, or is set by a template: the table of `bray config explain`."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from bray import registry
from bray.templates.loading import TASK, load
from bray.templates.schema import schema, tuned_task
from bray.templates.shipped import names
from bray.training.algorithm import PARTS, load_algorithm
from bray_core.errors import ConfigError
from bray_core.files.trial_folders import CONFIG
from bray_core.settings.choice import closest
from bray_core.settings.json_schema import descriptions


@dataclass(frozen=True, slots=True)
class Explanation:
    """Every setting of an algorithm, with its default or the value that a template gives it."""

    title: str
    """What is explained, in a line."""
    column: Literal["default", "value"]
    """What the second column is: a default of the algorithm, or the value in a template."""
    rows: tuple[tuple[str, str, str], ...]
    """Dotted name, default or value, and meaning of each setting."""

    def table(self) -> str:
        """Return it as text."""
        wide, value = (max(len(row[at]) for row in self.rows) for at in (0, 1))
        lines = [f"{a:{wide}}  {b:{value}}  {c}" for a, b, c in self.rows]
        return "\n".join([self.title, "", *lines])

    def to_json(self) -> list[dict[str, str]]:
        """Return an object for each setting."""
        keys = ("setting", self.column, "meaning")
        return [dict(zip(keys, row, strict=True)) for row in self.rows]


def explained(what: str, task: str = "") -> Explanation:
    """Return every setting of an algorithm, or of a template, a YAML file or a trial.

    Args:
        what: name of an algorithm, or what `bray train` takes as a template.
        task: what an algorithm is to play, which may have defaults of its own.

    Raises:
        ConfigError: there is no such algorithm or template, or the template has several learners.
    """
    is_file = what.endswith((".yaml", ".yml")) or Path(what, CONFIG).is_file()
    if is_file or (what in names() and what not in registry.names()):
        return _of_template(what, task)
    if TASK.search(what) and not task:
        raise ConfigError(
            f"algorithm: {what!r} is a task: expected an algorithm before it, such as `bray config "
            f"explain ppo {what}`"
        )
    algorithms = {*registry.names(), *registry.REMOVED}
    if what not in algorithms and not registry.is_own_code(what):
        known = [*registry.names(), *names()]
        raise ConfigError(
            f"algorithm: unknown {what!r}{closest(what, known)}; known: {', '.join(known)}, or a "
            "YAML file or a trial"
        )
    algorithm = load_algorithm(what)
    title = f"{algorithm.title}: {algorithm.__doc__ or ''}".rstrip()
    return Explanation(title, "default", _rows(what, tuned_task(algorithm, task), {}))


def _of_template(what: str, task: str) -> Explanation:
    template = load(what)
    if task:
        raise ConfigError(
            f"task: the template {what} has its task, {template.environment}: expected none, got "
            f"{task!r}"
        )
    if template.composition is not None:
        learners = template.composition.learners.values()
        known = ", ".join(dict.fromkeys(learner.algorithm for learner in learners))
        raise ConfigError(
            f"template: {what} names its parts, which are written where they are used: explain an "
            f"algorithm of it: {known}"
        )
    algorithm = load_algorithm(template.algorithm)
    title = f"{what}: {algorithm.title} on {template.environment}, with the template's values"
    tuned = tuned_task(algorithm, template.environment)
    return Explanation(title, "value", _rows(template.algorithm, tuned, dict(template.parts)))


def _rows(name: str, tuned: str, parts: Mapping[str, Any]) -> tuple[tuple[str, str, str], ...]:
    known = typing.get_type_hints(schema(name, tuned))
    rows = []
    for part in PARTS:
        words = descriptions(known[part])
        for one in fields(known[part]):
            value = _shown(getattr(parts[part], one.name)) if part in parts else _default(one)
            rows.append((f"{part}.{one.name}", value, words.get(one.name, "")))
    return tuple(rows)


def _default(one: Field[Any]) -> str:
    if one.default is not MISSING:
        return _shown(one.default)
    if one.default_factory is not MISSING:
        return _shown(one.default_factory())
    return "required"


def _shown(value: object) -> str:
    return str(list(value) if isinstance(value, tuple) else value)
