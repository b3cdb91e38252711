"""A template of the full form: models, learners, agents, buffers and sources by name, wired.

`bray.templates.full_form` reads one from YAML. All wires are resolved and all settings are checked:
who runs a composition looks up names, and decides nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from bray.goal import Goal
from bray.retention import RetentionPolicy
from bray.sources.config import ActorConfig
from bray.templates.callbacks import NamedCallback
from bray.templates.part_settings import NamedRenderPart
from bray.training.algorithm import Algorithm, Parts, load_algorithm
from bray_core.config import to_mapping
from bray_core.errors import BrayError, ConfigError
from bray_core.metrics.named_sinks import SinkEntries

Enable: TypeAlias = Literal["train", "deploy"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelPart:
    """A network: one that a trainer trains, or one that stays as it was saved."""

    name: str
    """Name of the model."""
    config: Any
    """Settings of the network, of the class that its trainer's algorithm names."""
    load: str | None = None
    """Path of a trial, or of an export, whose policy it is; then nobody trains it."""
    spaces: Mapping[str, Any] | None = None
    """What its policy sees and may do, where the template says it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnerPart:
    """A trainer with the settings of all parts that its algorithm reads."""

    name: str
    """Name of the trainer."""
    algorithm: str
    """Name of the algorithm."""
    model: str
    """Name of the model that it trains."""
    parts: Parts
    """Settings of model, agent, buffer, source, actor and trainer, of the classes that the
    algorithm names; the source is that of the first source in which the learner plays."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Name of a buffer by input of the algorithm, such as `experience`, where one is named; what
    is absent the algorithm makes for itself."""

    @property
    def algorithm_class(self) -> type[Algorithm[Any]]:
        """The class of the algorithm."""
        return load_algorithm(self.algorithm)

    def make(self) -> Algorithm[Any]:
        """Return the algorithm with these settings."""
        return self.algorithm_class(self.parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentPart:
    """Who plays: a policy that learns or stays as it is, or a script."""

    name: str
    """Name of the agent."""
    model: str | None = None
    """Name of the model that answers; None: a script plays."""
    play: str | None = None
    """`random`, `search` or `module:function`: a script that plays; nobody learns from it."""
    spaces: Mapping[str, Any] | None = None
    """What a script sees and may do in a simulator, where the template says it."""
    load: str | None = None
    """Path of the trial or export whose policy the model is, where it is frozen."""
    buffer: str | Mapping[str, float] | None = None
    """Name of the buffer where its experience goes, or several with their shares; None: the one
    that its learner's algorithm makes, or nowhere if nobody learns from it."""

    @property
    def is_frozen(self) -> bool:
        """Whether it never learns: a script, or a model that was loaded."""
        return self.play is not None or self.load is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class BufferPart:
    """What holds experience, where a template says so."""

    name: str
    """Name of the buffer."""
    kind: str
    """`queue`, `replay`, `dataset`, `mixture`, or `own`: as its trainer's algorithm makes it."""
    config: Any
    """Settings, of the class of the kind: `BufferConfig`, `ReplayConfig`, `DatasetConfig`,
    `MixtureConfig`, or the one that the algorithm names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourcePart:
    """What plays, and who plays in it."""

    name: str
    """Name of the source."""
    kind: str
    """`environments`, `gamecores`, `agents`, `matches`, an installed entry point of `bray.sources`,
    or `module:Class`."""
    config: Any
    """Settings, of a dataclass that the kind names."""
    agents: Mapping[str, str]
    """Name of an agent part by pattern of the environment's agent names, such as `hunter_*`; the
    first that fits holds. Empty in matches between all agents."""
    actor: ActorConfig
    """The workers that play."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Composition:
    """A whole run of named parts."""

    models: Mapping[str, ModelPart]
    """Models by name."""
    learners: Mapping[str, LearnerPart]
    """Trainers by name."""
    agents: Mapping[str, AgentPart]
    """Agents by name."""
    buffers: Mapping[str, BufferPart]
    """Buffers by name; those that algorithms make for themselves are absent."""
    sources: Mapping[str, SourcePart]
    """Sources by name."""
    renders: Mapping[str, NamedRenderPart] = field(default_factory=dict)
    """How episodes are shown, by name."""
    goal: Goal = field(default_factory=Goal)
    """When training has succeeded, and when it gives up."""
    keep: RetentionPolicy = field(default_factory=RetentionPolicy)
    """How much of the trial stays on disk."""
    callbacks: tuple[NamedCallback, ...] = ()
    """Classes of callbacks, see `bray.templates.callbacks`."""
    sinks: SinkEntries = ()
    """Where figures are written, too, see `bray_core.metrics.named_sinks`."""
    seed: int = 1
    """Seed of everything random."""
    enable: Enable = "train"
    """Whether it trains, or serves what it has trained."""
    places: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Where the settings of parts were written, `file:line:column` by dotted name."""

    def located(self, error: BrayError) -> BrayError:
        """Return an error of a run with the place where the setting is that it begins with."""
        found = re.match(r"[\w.]+", str(error))
        key = "" if found is None else found[0]
        while key and key not in self.places:
            key = key.rpartition(".")[0]
        kind = ConfigError if isinstance(error, ConfigError) else type(error)
        return kind(f"{self.places[key]}: {error}") if key else error

    @property
    def main(self) -> LearnerPart:
        """The learner that the goal is about."""
        if self.goal.agent is None:
            return next(iter(self.learners.values()))
        model = self.agents[self.goal.agent].model
        return next(one for one in self.learners.values() if one.model == model)

    def learner_of(self, agent: str) -> LearnerPart | None:
        """Return the learner that trains an agent's model; None for those that never learn."""
        model = self.agents[agent].model
        return next((one for one in self.learners.values() if one.model == model), None)

    @property
    def title(self) -> str:
        """What is trained on what, in words."""
        found = dict.fromkeys(one.algorithm for one in self.learners.values())
        played = dict.fromkeys(
            str(getattr(one.config, "title", getattr(one.config, "environment", "")))
            or one.kind.rpartition(":")[2]
            for one in self.sources.values()
        )
        return f"{', '.join(found)} on {', '.join(played)}"

    def to_mapping(self) -> dict[str, Any]:
        """Return it as the YAML file holds it, all settings and wires written out."""
        made: dict[str, Any] = {
            "enable": self.enable,
            "seed": self.seed,
            "models": {name: _model(one) for name, one in self.models.items()},
            "agents": {name: self._agent(one) for name, one in self.agents.items()},
            "buffers": {name: _buffer(one) for name, one in self.buffers.items()},
            "sources": {name: _source(one) for name, one in self.sources.items()},
            "actors": {name: to_mapping(one.actor) for name, one in self.sources.items()},
            "trainers": {name: _trainer(one) for name, one in self.learners.items()},
            "renders": {name: to_mapping(one) for name, one in self.renders.items()},
        }
        whole: dict[str, Any] = {"goal": self.goal, "keep": self.keep}
        if self.callbacks:
            whole["callbacks"] = self.callbacks
        if self.sinks:
            whole["sinks"] = self.sinks
        return made | to_mapping(whole)

    def _agent(self, one: AgentPart) -> dict[str, Any]:
        learner = self.learner_of(one.name) if one.model is not None else None
        settings = {} if learner is None else to_mapping(learner.parts.agent)
        wires = {"model": one.model, "play": one.play, "spaces": one.spaces, "buffer": one.buffer}
        return wires | settings


def _model(one: ModelPart) -> dict[str, Any]:
    return {"load": one.load, "spaces": one.spaces} | to_mapping(one.config)


def _source(one: SourcePart) -> dict[str, Any]:
    wires = {"kind": one.kind, "agents": dict(one.agents), "actor": one.name}
    return wires | to_mapping(one.config)


def _buffer(one: BufferPart) -> dict[str, Any]:
    return {"kind": None if one.kind == "own" else one.kind} | to_mapping(one.config)


def _trainer(one: LearnerPart) -> dict[str, Any]:
    wires = {"algorithm": one.algorithm, "model": one.model, "inputs": dict(one.inputs)}
    return wires | to_mapping(one.parts.trainer)
