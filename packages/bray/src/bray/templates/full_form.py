"""Reading a template of the full form: parts by name, wired, each with the settings of its kind."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bray.goal import Goal
from bray.retention import RetentionPolicy
from bray.templates.callbacks import NamedCallback, check_names
from bray.templates.composition import (
    AgentPart,
    BufferPart,
    Composition,
    Enable,
    LearnerPart,
    ModelPart,
    SourcePart,
)
from bray.templates.learning_together import check_learning
from bray.templates.part_classes import (
    OWN,
    PartClass,
    PartClasses,
    load_algorithms,
    settings_by_name,
)
from bray.templates.part_settings import DatasetConfig
from bray.templates.schema import CALLBACKS, RENAMED, SINKS, plain_config
from bray.templates.wires import DEMONSTRATIONS, EXPERIENCE, Wires
from bray.templates.wiring import Wiring
from bray.templates.written_parts import PLURALS, WHOLE, WrittenParts, as_written
from bray.training.algorithm import Algorithm, NoSettings, Parts
from bray.training.recorded_policy import RecordedPolicy
from bray_buffer import BufferConfig, ReplayConfig
from bray_core.errors import ConfigError
from bray_core.metrics.named_sinks import SinkEntry, check_entries
from bray_core.settings.choice import closest
from bray_core.settings.ranges import Seed, check_fields
from bray_core.settings.settings_build import SettingsBuilder
from bray_core.settings.settings_load import COMMAND_LINE, from_environment, overridden
from bray_core.settings.settings_tree import Value, override

_AS_ENVIRONMENTS = {"count": "num_processes", "lanes": "num_envs"}
"""Settings of simulators, by what they are called where gamecores play an environment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeSettings:
    """What is no part of a template."""

    enable: Enable = "train"
    seed: Seed = 1
    goal: Goal = field(default_factory=Goal)
    keep: RetentionPolicy = field(default_factory=RetentionPolicy)
    callbacks: tuple[NamedCallback, ...] = field(default=(), metadata={"description": CALLBACKS})
    sinks: tuple[SinkEntry, ...] | Mapping[str, Any] = field(
        default=(), metadata={"description": SINKS}
    )

    def __post_init__(self) -> None:
        check_fields(self)
        check_names(self.callbacks)
        check_entries(self.sinks)


def read_composition(
    tree: Value,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    *,
    runs_own_code: bool,
) -> Composition:
    """Return the composition of a template.

    Args:
        tree: the template as it was read; it stays as it is.
        overrides: settings such as `trainers.hunter.learning_rate=3e-4`, or `learning_rate=3e-4`
            where only one part has such a setting.
        environment: variables such as `BRAY_TRAINERS__HUNTER__LEARNING_RATE`.
        runs_own_code: whether classes `module:Class` may be imported, which runs them.

    Raises:
        ConfigError: naming all that is wrong, each with file, line, column and key.
    """
    root = overridden(tree.copy(), renamed=RENAMED)
    _override(root, overrides, environment or {}, runs_own_code=runs_own_code)
    problems = SettingsBuilder()
    made = _Reader(root, problems, runs_own_code=runs_own_code).composition()
    problems.raise_problems(root.place)
    assert made is not None, "what cannot be made is a problem"
    return made


def source_names(tree: Value) -> list[str]:
    """Return the names of a template's sources."""
    return WrittenParts(tree.copy(), SettingsBuilder()).names("source")


def _override(
    root: Value,
    overrides: Sequence[str],
    environment: Mapping[str, str],
    *,
    runs_own_code: bool,
) -> None:
    """Write overrides into a template; those of a setting alone come last, when parts are known."""
    alone = []
    written = WrittenParts(root.copy(), SettingsBuilder())
    for variable, key, text in from_environment(environment):
        if key.partition(".")[0] in (*PLURALS, *PLURALS.values(), *WHOLE):
            full = as_written(root, written.full_key(key))
            override(root, f"{full}={text}", f"environment {variable}")
    for text in overrides:
        key, equals, value = text.partition("=")
        key = RENAMED.get(key, key)
        if equals and key.partition(".")[0] not in (*PLURALS, *PLURALS.values(), *WHOLE):
            alone.append((key, value))
        else:
            full = as_written(root, written.full_key(key))
            override(root, f"{full}{equals}{value}", COMMAND_LINE)
    for key, value in alone:
        reader = _Reader(root.copy(), SettingsBuilder(), runs_own_code=runs_own_code)
        setting, dot, rest = key.partition(".")
        known = reader.settings()
        if dot and setting not in known:  # which is told with its place when all is loaded
            full = as_written(root, written.full_key(key))
        else:
            full = as_written(root, _found(setting, known)) + dot + rest
        override(root, f"{full}={value}", COMMAND_LINE)


def _found(setting: str, known: Mapping[str, Sequence[str]]) -> str:
    """Return the dotted name of a setting that is given by its own name alone.

    Raises:
        ConfigError: no part has one, or several have.
    """
    found = known.get(setting, ())
    if len(found) > 1:
        raise ConfigError(f"{setting}: expected one of {', '.join(found)}")
    if not found:
        near = closest(setting, known)
        raise ConfigError(f"{setting}: unknown setting{near}; known: {', '.join(sorted(known))}")
    return found[0]


class _Reader:
    """Reads one template.

    Args:
        root: the template; it is changed.
        problems: takes all that is wrong.
        runs_own_code: whether classes `module:Class` may be imported.
    """

    def __init__(self, root: Value, problems: SettingsBuilder, *, runs_own_code: bool) -> None:
        self._problems = problems
        self._written = WrittenParts(root, problems)
        self._algorithms = load_algorithms(self._written, runs_own_code=runs_own_code)
        self._wires: Wires = Wiring(self._written, self._algorithms).resolve()
        self._chooser = PartClasses(
            self._written, self._wires, self._algorithms, runs_own_code=runs_own_code
        )
        self._classes = self._chooser.all()
        self._settings = {**{name: [name] for name in WHOLE}, **self.settings()}
        """Dotted names of what may be meant by a setting that a part does not have."""
        self._loaded: dict[tuple[str, str], Any] = {}

    def settings(self) -> dict[str, list[str]]:
        """Return the dotted names of all settings, by their own names."""
        classes = {}
        for (kind, name), one in self._classes.items():
            classes[kind, self._as_written(kind, name)] = one
        return settings_by_name(classes)

    def composition(self) -> Composition | None:
        """Return all parts; None where something is wrong with one of them."""
        self._refuse_unknown()
        check_learning(self._written, self._wires, self._algorithms)
        for (kind, name), one in self._classes.items():
            self._load(kind, name, one)
        whole = self._build(self._written.whole(), WholeSettings, "")
        self._check_shared_agents()
        if self._problems.problems or whole is None:
            return None
        learners = {name: self._learner(name) for name in self._wires.model_of}
        self._check_learners(learners)
        if self._problems.problems:
            return None
        return Composition(
            models={name: self._model(name) for name in self._wires.models},
            learners=learners,
            agents={name: self._agent(name) for name in self._wires.agents},
            buffers={name: self._buffer(name) for name in self._written.names("buffer")},
            sources={name: self._source(name) for name in self._wires.players},
            renders={
                name: replace(self._loaded["render", name], source=self._wires.render_of[name])
                for name in self._written.names("render")
            },
            goal=whole.goal,
            keep=whole.keep,
            callbacks=whole.callbacks,
            sinks=whole.sinks,
            seed=whole.seed,
            enable=whole.enable,
            places=self._written.places(),
        )

    # Settings.

    def _refuse_unknown(self) -> None:
        known = [*PLURALS.values(), *WHOLE]
        for key, child in self._written.root.value.items():
            if key not in known:
                near = closest(key, [*known, *PLURALS])
                words = f"unknown key{near}; allowed: {', '.join(sorted(known))}"
                self._written.refuse(key, words, child.place)

    def _as_written(self, kind: str, name: str) -> str:
        """Return the name below which settings are: an actor's may be that of another."""
        return (self._wires.actor_of[name] or name) if kind == "actor" else name

    def _load(self, kind: str, name: str, one: PartClass) -> None:
        """Read the settings of a part."""
        own = self._as_written(kind, name)
        value = self._written.part(kind, own)
        if kind == "source" and self._wires.kinds[name] == "gamecores":
            value = _as_environments(value)
        loaded = self._build(value, one.schema, f"{PLURALS[kind]}.{own}")
        if loaded is None:
            return
        self._loaded[kind, name] = loaded if kind == "render" else plain_config(one.config, loaded)

    def _build(self, value: Value, schema: type[Any], path: str) -> Any:
        """Read a part by itself: what is wrong with another says nothing about its settings."""
        builder = SettingsBuilder(self._settings)
        made = builder.part(value, schema, path)
        known = {(one.place, one.text) for one in self._problems.problems}
        for one in builder.problems:
            if (one.place, one.text) not in known:  # an actor that two sources share
                self._problems.refuse(one.place, one.key, one.text)
        return None if builder.problems else made

    # Parts.

    def _learner(self, name: str) -> LearnerPart:
        algorithm, model = self._algorithms[name], self._wires.model_of[name]
        source = self._wires.source_of(name)
        inputs = self._wires.inputs_of[name]
        parts = Parts(
            model=self._loaded["model", model],
            agent=self._loaded["agent", self._agents_of(model)[0]],
            buffer=self._buffer_config(name, algorithm),
            source=self._loaded["source", str(source)],
            actor=self._actor_config(source, algorithm),
            trainer=self._loaded["trainer", name],
            demonstrations=self._demonstrations(inputs),
        )
        written = self._written.text("trainer", name, "algorithm")
        return LearnerPart(
            name=name, algorithm=str(written), model=model, parts=parts, inputs=inputs
        )

    def _agents_of(self, model: str) -> list[str]:
        """Return the agents that a model answers, that of its own name first."""
        found = [name for name, answering in self._wires.agents.items() if answering == model]
        return sorted(found, key=lambda name: name != model)

    def _buffer_config(self, trainer: str, algorithm: type[Algorithm[Any]]) -> Any:
        """Return the settings of the buffer that an algorithm makes."""
        config = algorithm.config_of("buffer")
        model = self._wires.model_of[trainer]
        named = [
            self._wires.inputs_of[trainer].get(EXPERIENCE),
            *(one for a in self._agents_of(model) for one in self._wires.buffer_of.get(a, ())),
        ]
        for name in named:
            if name is not None and self._kind_of_buffer(name) == OWN:
                return self._loaded["buffer", name]
        return plain_config(config, self._chooser.buffer_schema(trainer)())

    def _demonstrations(self, inputs: Mapping[str, str]) -> str | Mapping[str, float]:
        """Return the data set of a learner that imitates, or several with their shares."""
        name = inputs.get(DEMONSTRATIONS)
        if name is None:
            return ""
        config = self._loaded["buffer", name]
        if isinstance(config, DatasetConfig):
            return config.where
        mixed = ((self._loaded["buffer", one], share) for one, share in config.of.items())
        return {one.where: float(share) for one, share in mixed if share}

    def _actor_config(self, source: str | None, algorithm: type[Algorithm[Any]]) -> Any:
        wanted = algorithm.config_of("actor")
        assert source is not None, "a learner who never plays is a problem"
        return wanted() if wanted is NoSettings else self._loaded["actor", source]

    def _model(self, name: str) -> ModelPart:
        spaces = self._written.setting("model", name, "spaces")
        load = self._written.text("model", name, "load")
        return ModelPart(name=name, config=self._loaded["model", name], load=load, spaces=spaces)

    def _agent(self, name: str) -> AgentPart:
        model = self._wires.agents[name]
        return AgentPart(
            name=name,
            model=model,
            play=self._written.text("agent", name, "play"),
            spaces=self._written.setting("agent", name, "spaces"),
            load=self._written.text("model", model, "load") if model is not None else None,
            buffer=self._recorded(name),
        )

    def _recorded(self, agent: str) -> str | Mapping[str, float] | None:
        """Return the buffer that an agent records into, or several with their shares."""
        shares = self._wires.buffer_of.get(agent, {})
        return shares if len(shares) > 1 else next(iter(shares), None)

    def _kind_of_buffer(self, name: str) -> str:
        return self._written.text("buffer", name, "kind") or OWN

    def _buffer(self, name: str) -> BufferPart:
        config = self._loaded["buffer", name]
        return BufferPart(name=name, kind=self._kind_of_buffer(name), config=config)

    def _source(self, name: str) -> SourcePart:
        return SourcePart(
            name=name,
            kind=self._wires.kinds[name],
            config=self._loaded["source", name],
            agents=self._wires.players[name],
            actor=self._loaded["actor", name],
        )

    # What does not go together.

    def _check_shared_agents(self) -> None:
        """Refuse agents of one model that record in different ways: its trainer reads but one."""
        for model in self._wires.model_of.values():
            first, *others = self._agents_of(model) or [""]
            for other in others:
                both = (self._loaded.get(("agent", name)) for name in (first, other))
                if None not in (pair := tuple(both)) and pair[0] != pair[1]:
                    words = f"expected the settings of agents.{first}, whose model is the same"
                    self._written.refuse(f"agents.{other}", words)

    def _check_learners(self, learners: Mapping[str, LearnerPart]) -> None:
        """Refuse settings of several parts that an algorithm cannot combine."""
        for name, learner in learners.items():
            try:
                self._check_experience(name, self._algorithms[name](learner.parts))
            except ConfigError as error:
                self._refuse_of_learner(learner, str(error))
            except AttributeError as error:  # of a source that is not bray's
                if not hasattr(error, "name") or error.name is None:
                    raise
                source = self._wires.source_of(name)
                words = f"{self._algorithms[name].title} asks for `{error.name}`, which its"
                self._written.refuse(f"sources.{source}.kind", f"{words} settings do not have")

    def _leaves_of(self, buffer: str) -> list[str]:
        """Return a buffer, or the buffers below a mixture."""
        if self._kind_of_buffer(buffer) != "mixture":
            return [buffer]
        of = self._loaded["buffer", buffer].of
        return [leaf for one in of for leaf in self._leaves_of(one)]

    def _check_experience(self, name: str, algorithm: Algorithm[Any]) -> None:
        """Refuse a buffer from which an algorithm cannot be trained."""
        buffer = self._wires.inputs_of[name].get(EXPERIENCE)
        if buffer is None or not isinstance(algorithm, RecordedPolicy):
            return
        own = algorithm.buffer(is_local=True)
        for one in self._leaves_of(buffer):
            told = self._loaded["buffer", one]
            if self._kind_of_buffer(one) not in ("queue", "replay"):
                continue
            is_queue, wants_queue = isinstance(told, BufferConfig), isinstance(own, BufferConfig)
            key, title = f"buffers.{one}", self._algorithms[name].title
            if is_queue != wants_queue:
                wanted, got = ("queue", "replay") if wants_queue else ("replay", "queue")
                words = f"expected {wanted} for {title} (trainers.{name}), got {got}"
                self._written.refuse(f"{key}.kind", f"{words}: leave `kind` out to have its own")
                continue
            units = [one.unit for one in (told, own) if isinstance(one, ReplayConfig)]
            if len(set(units)) > 1:
                words = f"expected {units[1]} for {title} (trainers.{name}), got {units[0]}"
                self._written.refuse(f"{key}.unit", words)

    def _refuse_of_learner(self, learner: LearnerPart, message: str) -> None:
        """Add what an algorithm says of `source.num_envs`, by the names of the template's parts."""
        source = str(self._wires.source_of(learner.name))
        names = {
            "trainer": learner.name,
            "model": learner.model,
            "agent": self._agents_of(learner.model)[0],
            "source": source,
            "actor": self._wires.actor_of[source] or source,
            "buffer": learner.inputs.get(EXPERIENCE, learner.name),
        }
        found = re.match(r"(\w+)\.(\w+): ", message)
        if found is None or found[1] not in names:
            self._written.refuse(f"trainers.{learner.name}", message)
            return
        key = f"{PLURALS[found[1]]}.{names[found[1]]}.{found[2]}"
        self._written.refuse(key, message[found.end() :])


def _as_environments(value: Value) -> Value:
    """Return gamecores' settings with an environment's names: `count` is `num_processes` there."""
    settings = value.value
    if not isinstance(settings, dict) or "environment" not in settings:
        return value
    if not settings["environment"].value:
        return value
    renamed = {
        key if (other := _AS_ENVIRONMENTS.get(key, key)) in settings else other: child
        for key, child in settings.items()
    }
    return Value(renamed, value.place)
