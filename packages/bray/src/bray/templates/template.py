"""Templates: one YAML file that describes a run.

A template names an algorithm; its parts (model, agent, buffer, source, actor, trainer) are the
configs that the algorithm names, so nothing is written twice. The full form has any number of each,
by name: see `bray.templates.composition`. A template is named (`cartpole`,
shipped with bray) or is the path of a YAML file, or of a trial, whose `config.yaml` is one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

from bray.goal import Goal
from bray.retention import RetentionPolicy
from bray.templates.callbacks import NamedCallback
from bray.templates.composition import Composition
from bray.templates.composition import Enable as Enable
from bray.templates.part_settings import RenderPart as RenderPart
from bray.templates.shipped import names as names
from bray.training.algorithm import Algorithm, Parts, load_algorithm
from bray_core.config import to_mapping
from bray_core.errors import ConfigError
from bray_core.metrics.named_sinks import SinkEntries


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
    sinks: SinkEntries = ()
    """Where figures are written, too, see `bray_core.metrics.named_sinks`."""
    composition: Composition | None = None
    """The named parts of a template of the full form, where `algorithm` and `parts` are those of
    the learner that the goal is about; None in the short form."""

    @classmethod
    def of(cls, composition: Composition) -> Template:
        """Return the template of named parts."""
        main = composition.main
        return cls(
            algorithm=main.algorithm,
            parts=main.parts,
            enable=composition.enable,
            seed=composition.seed,
            goal=composition.goal,
            keep=composition.keep,
            callbacks=composition.callbacks,
            sinks=composition.sinks,
            composition=composition,
        )

    def with_seed(self, seed: int) -> Self:
        """Return the same run with another seed."""
        composition = self.composition
        if composition is not None:
            composition = replace(composition, seed=seed)
        return replace(self, seed=seed, composition=composition)

    @property
    def environment(self) -> str:
        """What is played."""
        source = self.parts.source
        environment: str = getattr(source, "title", source.environment)
        return environment

    def make(self) -> Algorithm[Any]:
        """Return the algorithm with these settings.

        Raises:
            ConfigError: there is no such algorithm, settings do not go together, or there are
                several learners: a composition is run as a whole.
        """
        if self.composition is not None:
            raise ConfigError(
                f"template: expected one of the short form (`trainer:`), got one of named parts "
                f"({', '.join(self.composition.learners)}): this command takes no such yet"
            )
        return load_algorithm(self.algorithm)(self.parts)

    def to_mapping(self) -> dict[str, Any]:
        """Return it as the YAML file holds it, all settings written out."""
        if self.composition is not None:
            return self.composition.to_mapping()
        found: dict[str, Any] = {"algorithm": self.algorithm, "enable": self.enable}
        found["seed"] = self.seed
        found |= dict(self.parts)
        found |= {"render": self.render, "goal": self.goal, "keep": self.keep}
        if self.callbacks:
            found["callbacks"] = self.callbacks
        if self.sinks:
            found["sinks"] = self.sinks
        return to_mapping(found)
