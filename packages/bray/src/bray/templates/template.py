"""Templates: one YAML file that describes a run, a thin layer over a recipe.

A template names a recipe; the settings of the recipe's `Config` are shared out to seven kinds of
parts: model, agent, buffer, source, actor, trainer, render (`bray.templates.schema` says which is
where). So nothing is written twice: what a recipe can be told, its template can. A template is
named (`cartpole`, shipped with bray) or is the path of a YAML file, or of a trial, whose
`config.yaml` is one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeAlias

from bray.goal import Goal
from bray.retention import Keep
from bray_core.config import load_text, load_yaml, to_mapping
from bray_core.errors import ConfigError
from bray_core.settings.choice import closest
from bray_core.trials.trial_paths import CONFIG

Enable: TypeAlias = Literal["train", "deploy"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RenderPart:
    """How episodes are shown."""

    function: str | None = None
    """`module:name` of what draws a tick, as an image or a figure; None draws what there is."""

    def __post_init__(self) -> None:
        if self.function is not None:
            module, colon, name = self.function.partition(":")
            if not (
                colon and name.isidentifier() and all(map(str.isidentifier, module.split(".")))
            ):
                raise ConfigError(f"function: expected module:name, got {self.function!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Wire:
    """How environments of other processes play over the wire."""

    num_processes: int = 0
    """Gamecore processes; 0: the environments are stepped where the policy answers."""
    port: int = 0
    """TCP port of all workers together; 0 takes any free one."""
    record_every: int = 0
    """Each worker writes 1 in so many episodes to the trial's `episodes/`; 0 writes none."""

    def __post_init__(self) -> None:
        for name in ("num_processes", "record_every"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}: expected 0 or more, got {getattr(self, name)}")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port: expected 0 to 65535, got {self.port}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Template:
    """A whole run."""

    recipe: str
    """The algorithm, of `bray.algorithms`."""
    environment: str
    """What is played."""
    settings: Any
    """The recipe's `Config`."""
    enable: Enable = "train"
    """Whether it trains, or serves what it has trained."""
    seed: int = 1
    """Of everything random."""
    wire: Wire = field(default_factory=Wire)
    render: RenderPart = field(default_factory=RenderPart)
    goal: Goal = field(default_factory=Goal)
    keep: Keep = field(default_factory=Keep)

    def to_mapping(self) -> dict[str, Any]:
        """Return it as the YAML file holds it, all settings written out."""
        from bray.templates.schema import WIRE, part_of

        found: dict[str, Any] = {"recipe": self.recipe, "enable": self.enable, "seed": self.seed}
        found["source"] = {"environment": self.environment}
        for setting in fields(self.settings):
            value = getattr(self.settings, setting.name)
            found.setdefault(part_of(setting.name), {})[setting.name] = value
        if self.recipe in WIRE:
            found.setdefault("actor", {})
            found["source"]["num_processes"] = self.wire.num_processes
            found["actor"] |= {"port": self.wire.port, "record_every": self.wire.record_every}
        return to_mapping(found | {"render": self.render, "goal": self.goal, "keep": self.keep})


def names() -> list[str]:
    """Return the names of the templates that ship with bray."""
    files = resources.files("bray") / "templates"
    return sorted(f.name.removesuffix(".yaml") for f in files.iterdir() if f.name.endswith(".yaml"))


def path_of(name: str) -> Path:
    """Return the file of a template: shipped, of its own, or that of a trial.

    Raises:
        ConfigError: there is none; names the closest that ships.
    """
    if name in names():
        return Path(str(resources.files("bray") / "templates" / f"{name}.yaml"))
    if Path(name, CONFIG).is_file():
        return Path(name, CONFIG)
    if name.endswith((".yaml", ".yml")) or os.sep in name:
        if Path(name).is_file():
            return Path(name)
        raise ConfigError(f"template: no file {name!r}")
    raise ConfigError(
        f"template: unknown {name!r}{closest(name, names())}; "
        f"known: {', '.join(names())}, or the path of a YAML file or a trial"
    )


def load(name: str, overrides: Sequence[str] = (), environment: str | None = None) -> Template:
    """Read a template by name or path.

    Args:
        name: or path.
        overrides: such as `trainer.learning_rate=3e-4`.
        environment: what is played instead: a Gymnasium id, the short name of an Atari game, or a
            task of the recipe's own.

    Variables of the environment such as `BRAY_TRAINER__LEARNING_RATE` win over the file, and
    overrides such as `trainer.learning_rate=3e-4` over both.

    Raises:
        ConfigError: naming file, line, column, key, what came and what is allowed.
    """
    from bray.templates.schema import chosen_schema, template_of

    loaded = template_of(load_yaml(path_of(name), chosen_schema, overrides, os.environ))
    if environment is None:
        return loaded
    from bray.training.deploy import answers_gamecores
    from bray_actor.spaces import resolve

    played = resolve(environment) if answers_gamecores(loaded.recipe) else environment
    return load(name, [*overrides, f"source.environment={played}"])


def parse(text: str, source: str) -> Template:
    """Read a template's YAML text, that of `source`, as it stands; errors as in `load`."""
    from bray.templates.schema import chosen_schema, template_of

    return template_of(load_text(text, source, chosen_schema))
