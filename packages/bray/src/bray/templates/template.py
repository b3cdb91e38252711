"""Templates: one YAML file that describes a run.

A template names an algorithm; its parts (model, agent, buffer, source, actor, trainer) are the
configs that the algorithm names, so nothing is written twice. A template is named (`cartpole`,
shipped with bray) or is the path of a YAML file, or of a trial, whose `config.yaml` is one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal, TypeAlias

from bray.goal import Goal
from bray.retention import RetentionPolicy
from bray.templates.callbacks import NamedCallback
from bray.training.algorithm import Algorithm, Parts, load_algorithm
from bray_core.config import to_mapping
from bray_core.errors import ConfigError

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
class Template:
    """A whole run."""

    algorithm: str
    """Name of the algorithm."""
    parts: Parts
    """Settings of the six parts."""
    enable: Enable = "train"
    """Whether it trains, or serves what it has trained."""
    seed: int = 1
    """Seed of everything random."""
    render: RenderPart = field(default_factory=RenderPart)
    goal: Goal = field(default_factory=Goal)
    keep: RetentionPolicy = field(default_factory=RetentionPolicy)
    callbacks: tuple[NamedCallback, ...] = ()
    """Classes of callbacks, see `bray.templates.callbacks`."""

    @property
    def environment(self) -> str:
        """What is played."""
        source = self.parts.source
        environment: str = getattr(source, "title", source.environment)
        return environment

    def make(self) -> Algorithm[Any]:
        """Return the algorithm with these settings.

        Raises:
            ConfigError: there is no such algorithm, or settings do not go together.
        """
        return load_algorithm(self.algorithm)(self.parts)

    def to_mapping(self) -> dict[str, Any]:
        """Return it as the YAML file holds it, all settings written out."""
        found: dict[str, Any] = {"algorithm": self.algorithm, "enable": self.enable}
        found["seed"] = self.seed
        found |= dict(self.parts)
        found |= {"render": self.render, "goal": self.goal, "keep": self.keep}
        if self.callbacks:
            found["callbacks"] = self.callbacks
        return to_mapping(found)


def names() -> list[str]:
    """Return the names of the templates that ship with bray."""
    files = resources.files("bray") / "templates"
    return sorted(f.name.removesuffix(".yaml") for f in files.iterdir() if f.name.endswith(".yaml"))
