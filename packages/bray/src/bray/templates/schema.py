"""The dataclass of a template: its parts are the configs that its algorithm names."""

from __future__ import annotations

import functools
import re
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields, make_dataclass
from typing import Any

from bray import registry
from bray.goal import Goal
from bray.retention import RetentionPolicy
from bray.templates.callbacks import check_names
from bray.templates.template import Enable, RenderPart, Template
from bray.training.algorithm import PARTS, Algorithm, Parts, load_algorithm, task_id
from bray.training.recorded_policy import RecordedPolicy
from bray_core.errors import ConfigError
from bray_core.metrics.named_sinks import check_entries
from bray_core.settings.json_schema import descriptions
from bray_core.settings.ranges import Seed, check_value

CALLBACKS = (
    "Classes of yours that are told how training goes, and may end it: `module:Class` or "
    "`file.py:Class`, or `{class: file.py:Class, settings: {…}}`. They are derived from "
    "`bray.Callback`."
)
"""What the setting `callbacks` means."""
SINKS = (
    "Where figures are written, too: names of sinks such as `csv`, `wandb` and `trackio`, "
    "or a name with its settings, `{wandb: {project: walker}}`."
)
"""What the setting `sinks` means."""
RENAMED = {"recipe": "algorithm"}
"""Keys of a template as earlier versions wrote them, with their names today."""


def chosen_schema(settings: Mapping[str, Any], *, runs_own_code: bool = False) -> type[Any]:
    """Return the dataclass that a template's settings are read into, by its algorithm and task.

    Args:
        settings: the template, as it was written.
        runs_own_code: whether an algorithm `module:Class` may be imported, which runs it: True for
            what its owner types, never for what comes from a browser.

    Raises:
        ConfigError: it names no algorithm, or one that there is not.
    """
    name = settings.get("algorithm")
    if not isinstance(name, str):
        known = ", ".join(registry.names())
        raise ConfigError(
            f"algorithm: expected one of {known}, got {name!r}: write `algorithm: ppo` at the top"
        )
    if registry.is_own_code(name) and not runs_own_code:
        raise ConfigError(f"algorithm: {name!r} names code of yours, which is not run here")
    source = settings.get("source")
    task = source.get("environment") if isinstance(source, Mapping) else None
    trainer = settings.get("trainer")
    variant = trainer.get("variant") if isinstance(trainer, Mapping) else None
    algorithm = load_algorithm(name)
    if not isinstance(variant, str):
        return schema(name, tuned_task(algorithm, task))
    return schema(name, tuned_task(algorithm, task, variant), variant)


def tuned_task(algorithm: type[Algorithm[Any]], task: object, variant: str = "") -> str:
    """Return a task for which an algorithm has other defaults than for most; else nothing.

    Args:
        algorithm: the class.
        task: what a template says, not checked yet.
        variant: its variant of the algorithm, likewise.
    """
    if not isinstance(task, str):
        return ""
    known = task_id(task)
    return (
        known
        if defaults_of(algorithm, known, variant) != defaults_of(algorithm, "", variant)
        else ""
    )


def defaults_of(algorithm: type[Algorithm[Any]], task: str, variant: str) -> dict[str, Any]:
    """Return the settings that an algorithm's variant has for a task, by dotted name."""
    return {**algorithm.defaults(task), **algorithm.variant_defaults(variant, task)}


@functools.lru_cache(maxsize=128)
def schema(name: str, task: str = "", variant: str = "") -> type[Any]:
    """Return the dataclass of an algorithm's templates.

    Args:
        name: name of the algorithm.
        task: a task with defaults of its own, as `tuned_task` returns it.
        variant: a variant of the algorithm, which may have some, too.

    Raises:
        ConfigError: there is no such algorithm.
    """
    algorithm = load_algorithm(name)
    defaults = defaults_of(algorithm, task, variant)
    made: list[Any] = [
        ("algorithm", str, _described("The algorithm.")),
        (
            "enable",
            Enable,
            _described("Whether it trains, or serves what it has trained.", "train"),
        ),
        ("seed", int, _described("Seed of everything random.", 1, {"minimum": 0})),
    ]
    for part, words in PARTS.items():
        values = {n.partition(".")[2]: v for n, v in defaults.items() if n.startswith(f"{part}.")}
        config = part_schema(algorithm.config_of(part), values)
        config.__doc__ = words
        is_needed = part == "source" or any(
            f.default is f.default_factory
            for f in fields(config)  # both MISSING
        )
        made.append((part, config, field() if is_needed else field(default_factory=config)))
    for part, whole in (("render", RenderPart), ("goal", Goal), ("keep", RetentionPolicy)):
        made.append((part, whole, field(default_factory=whole)))
    callbacks = _described(CALLBACKS, ())
    made.append(("callbacks", tuple[str | Mapping[str, Any], ...], callbacks))
    made.append(
        ("sinks", tuple[str | Mapping[str, Any], ...] | Mapping[str, Any], _described(SINKS, ()))
    )

    def check(loaded: Any) -> None:
        template_of(loaded)

    return make_dataclass(
        f"Template of {algorithm.title}",
        made,
        frozen=True,
        kw_only=True,
        namespace={"__post_init__": check, "__doc__": algorithm.__doc__},
    )


def _described(words: str, *default: Any) -> Any:
    limits = default[1] if len(default) > 1 else None
    metadata = {"description": words, "bounds": limits}
    return field(metadata=metadata) if not default else field(default=default[0], metadata=metadata)


def part_schema(
    config: type[Any], defaults: Mapping[str, Any], wires: type[Any] | None = None
) -> type[Any]:
    """Return a config class of which some fields have other defaults.

    Args:
        config: the class, which is left as it is.
        defaults: the defaults by name.
        wires: dataclass whose fields are added: how the part is joined to others.
    """
    hints = typing.get_type_hints(config, include_extras=True)
    words = descriptions(config)
    changed: list[Any] = [
        (name, hints[name], _with_default(value, {"description": words.get(name, "")}))
        for name, value in defaults.items()
    ]
    if wires is not None:
        hints, words = typing.get_type_hints(wires, include_extras=True), descriptions(wires)
        changed += [(one.name, hints[one.name], _again(one, words)) for one in fields(wires)]
    namespace = {"__module__": config.__module__}  # where the names of its other types are known
    return make_dataclass(
        config.__name__, changed, bases=(config,), frozen=True, kw_only=True, namespace=namespace
    )


def _with_default(value: Any, metadata: Mapping[str, Any]) -> Any:
    """Return a field with a default, which may be a mapping: each instance gets its own."""
    if isinstance(value, Mapping):
        return field(default_factory=functools.partial(dict, value), metadata=metadata)
    return field(default=value, metadata=metadata)


def _again(one: Field[Any], words: Mapping[str, str]) -> Any:
    """Return a field of another dataclass with its default and description."""
    metadata = {**one.metadata, "description": words.get(one.name, "")}
    if one.default_factory is not MISSING:
        return field(default_factory=one.default_factory, metadata=metadata)
    return field(default=one.default, metadata=metadata)


def plain_config(config: type[Any], loaded: Any) -> Any:
    """Return settings as the class that they are of, which travels to workers.

    Args:
        config: the class.
        loaded: an instance of what `part_schema` made of it.

    Raises:
        ConfigError: a value is out of range.
    """
    return config(**{f.name: getattr(loaded, f.name) for f in fields(config)})


def template_of(loaded: Any) -> Template:
    """Return what was read into the dataclass of `schema` as a template.

    Raises:
        ConfigError: a value is out of range, or two do not go together; begins with a dotted name.
    """
    check_value("seed", loaded.seed, Seed)
    algorithm = load_algorithm(loaded.algorithm)
    _check_goal(loaded.goal, algorithm)
    made = Template(
        algorithm=loaded.algorithm,
        parts=Parts(**{part: _plain(algorithm, part, getattr(loaded, part)) for part in PARTS}),
        enable=loaded.enable,
        seed=loaded.seed,
        render=loaded.render,
        goal=loaded.goal,
        keep=loaded.keep,
        callbacks=loaded.callbacks,
        sinks=loaded.sinks,
    )
    check_names(made.callbacks)
    check_entries(made.sinks)
    made.make()  # refuses settings that do not go together
    return made


def _check_goal(goal: Goal, algorithm: type[Algorithm[Any]]) -> None:
    """Refuse what a goal may say of named parts alone."""
    for name in ("agent", "win_rate"):
        if (got := getattr(goal, name)) is None:
            continue
        cure = "write `source: {kind: matches}`, or `agents:` and `trainers:` by name"
        if not issubclass(algorithm, RecordedPolicy):
            cure = f"remove it: {algorithm.title} trains alone, and decides by episode_return"
        raise ConfigError(
            f"goal.{name}: expected in a template with named agents or matches alone, got "
            f"{got!r}: {cure}"
        )


def _plain(algorithm: type[Algorithm[Any]], part: str, loaded: Any) -> Any:
    """Return a part's config as the algorithm's own class, which travels to workers."""
    config = algorithm.config_of(part)
    try:
        return plain_config(config, loaded)
    except ConfigError as error:
        name = re.split(r"\W", str(error), maxsplit=1)[0]
        is_field = name in {f.name for f in fields(config)}
        raise ConfigError(f"{part}.{error}" if is_field else str(error)) from error
