"""Which part of a template each setting of a recipe belongs to; the schema that follows."""

from __future__ import annotations

import functools
import re
import typing
from collections.abc import Mapping
from dataclasses import MISSING, field, fields, make_dataclass
from typing import Any

from bray.goal import Goal
from bray.registry import defaults, load, names, tuned_task
from bray.retention import Keep
from bray.templates.template import Enable, RenderPart, Template, Wire
from bray_core.errors import ConfigError
from bray_core.settings.bounds import bounds
from bray_core.settings.json_schema import descriptions, json_schema

PARTS = {
    "model": "The network.",
    "agent": "How an agent acts and records its experience.",
    "buffer": "What holds experience between playing and training.",
    "source": "Where experience comes from.",
    "actor": "The workers that play, or that answer the simulators that play.",
    "trainer": "The algorithm.",
}
"""With `render`, the seven; what is below is said by the recipe."""
_SETTINGS = {
    "model": ("hidden", "memory_size", "critic", "mixing"),
    "agent": (
        "segment_length", "n_step", "epsilon_end", "epsilon_steps", "warmup_noise",
        "exploration_noise", "num_simulations", "play_simulations", "noise_alpha",
        "num_random_moves", "opening_moves", "opponents", "latest",
    ),
    "buffer": ("capacity", "prioritized", "warmup_frames", "samples_per_position"),
    "source": ("num_envs", "env_threads", "demonstrations", "num_games", "games_per_round"),
    "actor": ("num_workers",),
}  # fmt: skip
"""All others are the trainer's."""
_PART_OF = {setting: part for part, settings in _SETTINGS.items() for setting in settings}

WIRE = ("ppo",)
"""Recipes that simulators of other processes can play for, over the wire."""
_WIRE = {"num_processes": "source", "port": "actor", "record_every": "actor"}


def part_of(setting: str) -> str:
    """Return the part that holds a setting of a recipe."""
    return _PART_OF.get(setting, "trainer")


def chosen_schema(settings: Mapping[str, Any]) -> type[Any]:
    """Return the dataclass that a template's settings are read into, by its recipe and task.

    Raises:
        ConfigError: it names no recipe, or one that there is not.
    """
    recipe = settings.get("recipe")
    if not isinstance(recipe, str):
        raise ConfigError(f"recipe: expected one of {', '.join(names())}, got {recipe!r}")
    source = settings.get("source")
    task = source.get("environment") if isinstance(source, Mapping) else None
    return schema(recipe, tuned_task(recipe, task))


@functools.cache
def schema(recipe: str, task: str = "") -> type[Any]:
    """Return the dataclass of the templates of a recipe.

    Args:
        recipe: its name.
        task: of `tuned_task`.

    Raises:
        ConfigError: there is no such recipe.
    """
    parts: list[Any] = [
        ("recipe", str, _plain("The algorithm.")),
        ("enable", Enable, _plain("Whether it trains, or serves what it has trained.", "train")),
        ("seed", int, _plain("Of everything random.", 1, {"minimum": 0})),
    ]
    for part, words in PARTS.items():
        inner = _part(recipe, task, part)
        needs = part == "source"
        parts.append((part, inner, field() if needs else field(default_factory=inner)))
        inner.__doc__ = words
    for name, whole in (("render", RenderPart), ("goal", Goal), ("keep", Keep)):
        parts.append((name, whole, field(default_factory=whole)))
    return make_dataclass(
        f"Template of {recipe}",
        parts,
        frozen=True,
        kw_only=True,
        namespace={"__post_init__": template_of, "__doc__": load(recipe).__doc__},
    )


def _part(recipe: str, task: str, part: str) -> type[Any]:
    """Return the dataclass of a part; its values are checked by the whole."""
    config, default = load(recipe).Config, defaults(recipe, task)
    made: list[Any] = []
    if part == "source":
        words = "What is played: a Gymnasium id, or a task or game that the recipe knows."
        made.append(("environment", str, _plain(words)))
    made += _fields(config, default, lambda name: part_of(name) == part)
    if recipe in WIRE:
        made += _fields(Wire, Wire(), lambda name: _WIRE[name] == part)
    return make_dataclass(part, made, frozen=True, kw_only=True)


def _fields(config: type[Any], default: Any, is_here: typing.Callable[[str], bool]) -> list[Any]:
    hints, words, limits = typing.get_type_hints(config), descriptions(config), bounds(config)
    return [
        (
            f.name,
            hints[f.name],
            _plain(words.get(f.name, ""), getattr(default, f.name), limits.get(f.name)),
        )
        for f in fields(config)
        if is_here(f.name)
    ]


def _plain(words: str, default: Any = MISSING, limits: Any = None) -> Any:
    metadata = {"description": words, "bounds": limits}
    if default is MISSING:
        return field(metadata=metadata)
    return field(default=default, metadata=metadata)


def json_schema_of_all() -> dict[str, Any]:
    """Return the JSON Schema of templates: what a part may hold follows from the recipe."""
    branches = [
        {
            "if": {"properties": {"recipe": {"const": name}}},
            "then": {"$ref": f"#/$defs/{name}"},
        }
        for name in names()
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A template of bray",
        "type": "object",
        "properties": {"recipe": {"enum": names()}},
        "required": ["recipe"],
        "allOf": branches,
        "$defs": {name: json_schema(schema(name)) for name in names()},
    }


def template_of(loaded: Any) -> Template:
    """Return what was read into the dataclass of `schema` as a template.

    Raises:
        ConfigError: a value is out of range; begins with its dotted name.
    """
    recipe = loaded.recipe
    settings = _config(load(recipe).Config, loaded, part_of)
    wire = _config(Wire, loaded, _WIRE.__getitem__) if recipe in WIRE else Wire()
    if loaded.seed < 0:
        raise ConfigError(f"seed: expected 0 or more, got {loaded.seed}")
    if wire.num_processes:
        _check_wire(settings, wire)
    return Template(
        recipe=recipe,
        environment=loaded.source.environment,
        settings=settings,
        enable=loaded.enable,
        seed=loaded.seed,
        wire=wire,
        render=loaded.render,
        goal=loaded.goal,
        keep=loaded.keep,
    )


def _config(config: type[Any], loaded: Any, part: typing.Callable[[str], str]) -> Any:
    names = [f.name for f in fields(config)]
    try:
        return config(**{name: getattr(getattr(loaded, part(name)), name) for name in names})
    except ConfigError as error:
        name = re.split(r"\W", str(error), maxsplit=1)[0]
        raise ConfigError(f"{part(name)}.{error}" if name in names else str(error)) from error


def _check_wire(settings: Any, wire: Wire) -> None:
    """Refuse what the lockstep over the wire cannot share out."""
    lanes = wire.num_processes * settings.num_envs
    if settings.steps_per_replay % lanes:
        raise ConfigError(
            f"trainer.steps_per_replay: expected a multiple of the {lanes} environments "
            f"(source.num_processes × source.num_envs), got {settings.steps_per_replay}"
        )
    if wire.num_processes % settings.num_workers:
        raise ConfigError(
            f"actor.num_workers: expected a divisor of source.num_processes="
            f"{wire.num_processes}, got {settings.num_workers}"
        )
    if settings.memory_size:
        raise ConfigError(
            f"model.memory_size: expected 0 over the wire, got {settings.memory_size}: "
            "set source.num_processes=0"
        )
