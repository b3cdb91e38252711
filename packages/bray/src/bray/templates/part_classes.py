"""The dataclass of each named part: it follows from the part's own key, or from its algorithm."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from bray import registry
from bray.policies.config import NetworkConfig
from bray.sources.config import FrameSourceConfig, ServingActorConfig
from bray.sources.source_kind import find_source_kind
from bray.templates.part_settings import (
    BUFFER_KINDS,
    AgentWires,
    BufferWires,
    ModelWires,
    NamedRenderPart,
    SourceWires,
    TrainerWires,
)
from bray.templates.schema import defaults_of, part_schema
from bray.templates.wires import EXPERIENCE, Wires
from bray.templates.written_parts import PLURALS, WrittenParts
from bray.training.algorithm import Algorithm, NoSettings, load_algorithm, task_id
from bray.training.off_policy.replay_learning import OffPolicy
from bray_core.errors import ConfigError
from bray_core.settings.choice import check_choice

OWN = "own"
"""Kind of a buffer that its trainer's algorithm makes."""
OF_ALGORITHM = ("environments", "gamecores")
"""Kinds of sources of which algorithms have settings of their own."""


@dataclass(frozen=True, slots=True)
class PartClass:
    """What a part's settings are read into."""

    config: type[Any]
    """Class of the settings, which algorithms know."""
    schema: type[Any]
    """The same with other defaults, and with the wires."""


def load_algorithms(
    written: WrittenParts, *, runs_own_code: bool
) -> dict[str, type[Algorithm[Any]]]:
    """Return the class of each trainer's algorithm; one that cannot be found is a problem.

    Args:
        written: the template.
        runs_own_code: whether `module:Class` may be imported, which runs it.
    """
    found: dict[str, type[Algorithm[Any]]] = {}
    looked_up = functools.cache(load_algorithm)  # several trainers may have the same
    all_names = functools.cache(registry.names)  # looking what is installed takes milliseconds
    for name in written.names("trainer"):
        key = f"trainers.{name}.algorithm"
        algorithm = written.setting("trainer", name, "algorithm")
        if not isinstance(algorithm, str):
            known = ", ".join(all_names())
            got = "missing: " if algorithm is None else ""
            end = "" if algorithm is None else f", got {algorithm!r}"
            written.refuse(key, f"{got}expected one of {known}{end}")
        elif registry.is_own_code(algorithm) and not runs_own_code:
            written.refuse(key, f"{algorithm!r} names code of yours, which is not run here")
        else:
            try:
                if not registry.is_own_code(algorithm) and algorithm not in registry.REMOVED:
                    check_choice("algorithm", algorithm, all_names())
                found[name] = looked_up(algorithm)
            except ConfigError as error:
                written.refuse(key, str(error).partition(": ")[2])
    return found


class PartClasses:
    """Chooses the class of each part.

    Args:
        written: the template; takes what is wrong.
        wires: how its parts are joined.
        algorithms: class of each trainer's algorithm, where it is known.
        runs_own_code: whether `module:Class` may be imported, which runs it.
    """

    def __init__(
        self,
        written: WrittenParts,
        wires: Wires,
        algorithms: Mapping[str, type[Algorithm[Any]]],
        *,
        runs_own_code: bool,
    ) -> None:
        self._written = written
        self._wires = wires
        self._algorithms = algorithms
        self._runs_own_code = runs_own_code

    def all(self) -> dict[tuple[str, str], PartClass]:
        """Return the class of each part by kind and name; absent where no one can be chosen."""
        found: dict[tuple[str, str], PartClass | None] = {}
        for name in self._written.names("trainer"):
            found["trainer", name] = self._of_learner("trainer", name, TrainerWires)
        for name in dict.fromkeys([*self._wires.models, *self._written.names("model")]):
            found["model", name] = self._of_model(name)
        for name in dict.fromkeys([*self._wires.agents, *self._written.names("agent")]):
            found["agent", name] = self._of_agent(name)
        for name in self._written.names("buffer"):
            found["buffer", name] = self._of_buffer(name)
        for name in self._written.names("source"):
            found["source", name] = self._of_source(name)
            found["actor", name] = self._of_actor(name)
        for name in self._written.names("render"):
            found["render", name] = PartClass(NamedRenderPart, NamedRenderPart)
        return {key: one for key, one in found.items() if one is not None}

    def buffer_schema(self, trainer: str) -> type[Any]:
        """Return the class of the buffer that a trainer's algorithm makes."""
        config = self._algorithms[trainer].config_of("buffer")
        return part_schema(config, self._defaults(trainer, "buffer"))

    def _defaults(self, trainer: str, part: str) -> dict[str, Any]:
        """Return what a trainer's algorithm wants of a part, for the task that it plays."""
        source = self._wires.source_of(trainer)
        task = self._written.text("source", source, "environment") if source else None
        variant = self._written.text("trainer", trainer, "variant") or ""
        all_parts = defaults_of(self._algorithms[trainer], task_id(task or ""), variant)
        return {
            name.partition(".")[2]: value
            for name, value in all_parts.items()
            if name.startswith(f"{part}.")
        }

    def _of_learner(self, part: str, trainer: str | None, wires: type[Any]) -> PartClass | None:
        """Return the class that a trainer's algorithm names; None where it is not known."""
        if trainer is None or trainer not in self._algorithms:
            return None
        config = self._algorithms[trainer].config_of(part)
        return PartClass(config, part_schema(config, self._defaults(trainer, part), wires))

    def _of_model(self, name: str) -> PartClass | None:
        trainer = self._wires.trainer_of(name)
        if trainer is not None:
            return self._of_learner("model", trainer, ModelWires)
        is_loaded = self._written.setting("model", name, "load") is not None
        config: type[Any] = NoSettings if is_loaded else NetworkConfig
        return PartClass(config, part_schema(config, {}, ModelWires))

    def _of_agent(self, name: str) -> PartClass | None:
        trainer = self._wires.trainer_of(self._wires.agents.get(name))
        if trainer is not None:
            return self._of_learner("agent", trainer, AgentWires)
        if name not in self._wires.agents:
            return None
        return PartClass(NoSettings, part_schema(NoSettings, {}, AgentWires))

    def _of_buffer(self, name: str) -> PartClass | None:
        kind = self._written.setting("buffer", name, "kind")
        trainer = self._trainer_from(name)
        if isinstance(kind, str) and kind in BUFFER_KINDS:
            config = BUFFER_KINDS[kind]
            draws = trainer is not None and issubclass(self._algorithms[trainer], OffPolicy)
            defaults = {"unit": "transition"} if kind == "replay" and draws else {}
            return PartClass(config, part_schema(config, defaults, BufferWires))
        if kind is not None:  # the loader says which there are
            return PartClass(NoSettings, part_schema(NoSettings, {}, BufferWires))
        return self._of_learner("buffer", trainer, BufferWires)

    def _trainer_from(self, buffer: str) -> str | None:
        """Return the trainer that learns from a buffer, if its algorithm is known."""
        filling = [n for n, filled in self._wires.buffer_of.items() if buffer in filled]
        trainers = [self._wires.trainer_of(self._wires.agents[agent]) for agent in filling]
        reading = [n for n, i in self._wires.inputs_of.items() if i.get(EXPERIENCE) == buffer]
        known = (one for one in (*reading, *trainers) if one in self._algorithms)
        return next(known, None)

    def _of_source(self, name: str) -> PartClass | None:
        kind = self._wires.kinds[name]
        config = self._class_of_kind(name, kind)
        if config is None:
            return None
        defaults = self._agreed("source", name, config)
        if kind == "gamecores" and self._written.setting("source", name, "environment"):
            defaults = {"num_processes": 1} | {
                n: value for n, value in defaults.items() if (n, value) != ("num_processes", 0)
            }
        return PartClass(config, part_schema(config, defaults, SourceWires))

    def _class_of_kind(self, name: str, kind: str) -> type[Any] | None:
        key = f"sources.{name}.kind"
        if registry.is_own_code(kind) and not self._runs_own_code:
            self._written.refuse(key, f"{kind!r} names code of yours, which is not run here")
            return None
        try:
            is_brays = registry.is_declared("bray.sources", kind)
            found = registry.find("bray.sources", kind) if is_brays else find_source_kind(kind)
        except ConfigError as error:
            self._written.refuse(key, str(error).partition(": ")[2])
            return None
        config: type[Any] = found.Config
        return self._of_algorithms(name, kind) if kind in OF_ALGORITHM else config

    def _of_algorithms(self, name: str, kind: str) -> type[Any] | None:
        """Return the settings of environments or gamecores that all who learn there understand."""
        learning = [n for n in self._wires.trainers_in(name) if n in self._algorithms]
        classes = {n: self._algorithms[n].config_of("source") for n in learning}
        for trainer in learning:
            algorithm = self._algorithms[trainer]
            if kind == "gamecores" and not algorithm.takes.gamecores:
                words = f"{algorithm.title} (trainers.{trainer}) takes no gamecores"
                self._written.refuse(f"sources.{name}.kind", words)
                return None
        if not classes:
            return FrameSourceConfig
        widest = _widest(classes.values())
        if widest is None:
            told = ", ".join(f"trainers.{n} ({one.__name__})" for n, one in classes.items())
            words = f"expected trainers that play in the same way, got {told}: give each a source"
            self._written.refuse(f"sources.{name}", words)
        return widest

    def _of_actor(self, name: str) -> PartClass:
        """Return the class of a source's workers."""
        learning = [n for n in self._wires.trainers_in(name) if n in self._algorithms]
        classes = {self._algorithms[n].config_of("actor") for n in learning} - {NoSettings}
        config = _widest(classes) or ServingActorConfig
        return PartClass(config, part_schema(config, self._agreed("actor", name, config)))

    def _agreed(self, part: str, source: str, config: type[Any]) -> dict[str, Any]:
        """Return the defaults that all who learn in a source want, of settings that there are."""
        learning = [n for n in self._wires.trainers_in(source) if n in self._algorithms]
        wanted = [self._defaults(trainer, part) for trainer in learning]
        known = {one.name for one in fields(config)}
        return {
            name: value
            for name, value in (wanted[0] if wanted else {}).items()
            if name in known and all(other.get(name) == value for other in wanted)
        }


def settings_by_name(classes: Mapping[tuple[str, str], PartClass]) -> dict[str, list[str]]:
    """Return the dotted names of all settings, by their own names.

    Args:
        classes: class of each part by kind and name.
    """
    found: dict[str, list[str]] = {}
    for (kind, name), one in classes.items():
        for setting in fields(one.schema):
            found.setdefault(setting.name, []).append(f"{PLURALS[kind]}.{name}.{setting.name}")
    return found


def _widest(classes: Iterable[type[Any]]) -> type[Any] | None:
    """Return the class that is derived from all others; None if there is none."""
    classes = list(classes)
    return next((one for one in classes if all(issubclass(one, other) for other in classes)), None)
