"""A template as a graph: its parts by kind and name, and the wires between them, of both forms.

Parts that a template does not write, but that it has, are drawn too: the buffer that an algorithm
makes for itself, the model of a trainer's name. No code that a template names is ever run here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypedDict

from bray.templates.part_classes import PartClasses, load_algorithms
from bray.templates.part_settings import BufferWires
from bray.templates.schema import part_schema
from bray.templates.wires import EXPERIENCE, Wires, inputs_of
from bray.templates.wiring import Wiring
from bray.templates.written_parts import PLURALS, WrittenParts, default_name, is_full_form
from bray.training.algorithm import Algorithm, NoSettings
from bray_core.settings.settings_build import SettingsBuilder
from bray_core.settings.settings_tree import Value, unwrap

KINDS = {plural: kind for kind, plural in PLURALS.items()}
"""The kind of a part by the first word of its id, such as `trainer` by `trainers`."""
_TELLING = ("algorithm", "environment", "command", "kind", "load", "play", "function")
"""Settings that say what a part is; the first of them begins its summary."""
_MAX_SUMMARY = 3
"""Number of settings in a summary."""
_MAX_SHOWN = 40
"""Number of characters of a value in a summary."""


class GraphPart(TypedDict):
    """A part of a template, as a box shows it."""

    id: str
    """Its dotted name, such as `trainers.hunter`."""
    kind: str
    """`source`, `actor`, `render`, `agent`, `model`, `buffer` or `trainer`."""
    name: str
    """Its name; that of the only part of a kind is `policy` or `source`."""
    is_written: bool
    """Whether the template writes it; if not, it follows from other parts."""
    summary: str
    """What it is, and a few of its settings."""
    settings: dict[str, object]
    """What the template writes of it."""


class GraphWire(TypedDict):
    """A wire from one part to another, in the direction in which things flow."""

    source: str
    """Id of the part at which it begins."""
    target: str
    """Id of the part to which it leads."""
    name: str
    """Pattern of agents, input of an algorithm, share of a mixture, or what flows."""
    path: list[str]
    """Keys of the setting that says it, in the full form."""
    is_written: bool
    """Whether the template says it; if not, it follows from names."""


class TemplateGraph(TypedDict):
    """A template's parts and wires."""

    is_full: bool
    """Whether the template is of the full form."""
    parts: list[GraphPart]
    """All parts."""
    wires: list[GraphWire]
    """All wires whose both ends there are."""


class GraphReader:
    """Reads one template's graph.

    Args:
        tree: the template as it was read; it stays as it is.
        is_full: whether it is of the full form.
    """

    def __init__(self, tree: Value, *, is_full: bool) -> None:
        self._is_full = is_full
        top = tree.copy() if isinstance(tree.value, dict) else Value({}, tree.place)
        for kind in PLURALS:  # `trainer:` with nothing below it
            if kind in top.value and top.value[kind].value is None:
                top.value[kind].value = {}
        self._written = WrittenParts(top, SettingsBuilder())
        self._algorithms: Mapping[str, type[Algorithm[Any]]] = load_algorithms(
            self._written, runs_own_code=False
        )
        self._wires: Wires = Wiring(self._written, dict(self._algorithms)).resolve()

    def graph(self) -> TemplateGraph:
        """Return all parts and wires."""
        parts = [self._part(kind, name) for kind in PLURALS for name in self._names(kind)]
        known = {part["id"] for part in parts}
        wires = [w for w in self._all_wires() if {w["source"], w["target"]} <= known]
        return {"is_full": self._is_full, "parts": parts, "wires": wires}

    def classes(self) -> dict[str, type[Any]]:
        """Return the dataclass of each part's settings by its id, where it is known."""
        chooser = PartClasses(self._written, self._wires, self._algorithms, runs_own_code=False)
        found: dict[str, type[Any]] = {}
        for (kind, name), one in chooser.all().items():
            own = (self._wires.actor_of[name] or name) if kind == "actor" else name
            found.setdefault(f"{PLURALS[kind]}.{own}", one.schema)
        for name in self._made_buffers():
            schema = chooser.buffer_schema(name)
            found[f"buffers.{name}"] = part_schema(schema, {}, BufferWires)
        return found

    # Parts.

    def _part(self, kind: str, name: str) -> GraphPart:
        settings = unwrap(self._written.part(kind, name))
        settings = settings if isinstance(settings, dict) else {}
        return {
            "id": f"{PLURALS[kind]}.{name}",
            "kind": kind,
            "name": name,
            "is_written": name in self._written.names(kind),
            "summary": _summary(settings),
            "settings": settings,
        }

    def _names(self, kind: str) -> list[str]:
        """Return the names of a kind's parts: those that are written, and those that follow."""
        following = {
            "model": self._wires.models,
            "agent": list(self._wires.agents),
            "buffer": self._made_buffers(),
            "actor": self._made_actors(),
        }
        return list(dict.fromkeys([*self._written.names(kind), *following.get(kind, [])]))

    def _made_buffers(self) -> list[str]:
        """Return the trainers whose algorithms make their buffer themselves."""
        return [
            name
            for name, given in self._wires.inputs_of.items()
            if name in self._algorithms
            and EXPERIENCE in inputs_of(self._algorithms[name])
            and EXPERIENCE not in given
            and name not in self._written.names("buffer")
        ]

    def _made_actors(self) -> list[str]:
        """Return the sources whose workers have the settings that algorithms give them."""
        return [name for name in self._wires.players if self._actor_of(name) == name]

    def _actor_of(self, source: str) -> str | None:
        """Return the actor of a source; None where nothing of it can be set."""
        learning = [self._algorithms.get(name) for name in self._wires.trainers_in(source)]
        has_actor = any(one and one.config_of("actor") is not NoSettings for one in learning)
        return self._wires.actor_of[source] or (source if has_actor else None)

    # Wires.

    def _all_wires(self) -> Iterator[GraphWire]:
        yield from self._wires_of_sources()
        yield from self._wires_of_agents()
        yield from self._wires_of_trainers()
        for name in self._written.names("buffer"):
            if self._written.text("buffer", name, "kind") == "mixture":
                for one, share in self._written.mapping("buffer", name, "of").items():
                    at = ["buffers", name, "of", one]
                    yield self._wire(f"buffers.{one}", f"buffers.{name}", str(share), at)
        for name, source in self._wires.render_of.items():
            at = ["renders", name, "source"]
            yield self._wire(f"renders.{name}", f"sources.{source}", "shows", at)

    def _wires_of_sources(self) -> Iterator[GraphWire]:
        for name, players in self._wires.players.items():
            at = ["sources", name]
            actor = self._actor_of(name)
            if actor is not None:
                yield self._wire(f"actors.{actor}", f"sources.{name}", "workers", [*at, "actor"])
            if not players and self._wires.kinds[name] == "matches":
                for agent in self._wires.agents:
                    yield self._wire(f"sources.{name}", f"agents.{agent}", "matches", at)
            for pattern, agent in players.items():
                path = [*at, "agents", pattern]
                yield self._wire(f"sources.{name}", f"agents.{agent}", pattern, path)

    def _wires_of_agents(self) -> Iterator[GraphWire]:
        for name, model in self._wires.agents.items():
            at = ["agents", name]
            if model is None:
                continue
            yield self._wire(f"agents.{name}", f"models.{model}", "asks", [*at, "model"])
            trainer = self._wires.trainer_of(model)
            buffers = self._wires.buffer_of.get(name, {})
            for buffer, share in buffers.items():
                word = "steps" if len(buffers) == 1 else f"{share:g} of the steps"
                path = [*at, "buffer", *([buffer] if len(buffers) > 1 else [])]
                yield self._wire(f"agents.{name}", f"buffers.{buffer}", word, path)
            if not buffers and trainer in self._made_buffers():
                path = [*at, "buffer"]
                yield self._wire(f"agents.{name}", f"buffers.{trainer}", "steps", path)

    def _wires_of_trainers(self) -> Iterator[GraphWire]:
        for name, model in self._wires.model_of.items():
            at = ["trainers", name]
            given = dict(self._wires.inputs_of.get(name, {}))
            if name in self._made_buffers():
                given[EXPERIENCE] = name
            for word, buffer in given.items():
                path = [*at, "inputs", word]
                if word == EXPERIENCE and self._written.setting("trainer", name, "buffer"):
                    path = [*at, "buffer"]
                yield self._wire(f"buffers.{buffer}", f"trainers.{name}", word, path)
            yield self._wire(f"trainers.{name}", f"models.{model}", "trains", [*at, "model"])

    def _wire(self, source: str, target: str, name: str, path: list[str]) -> GraphWire:
        plural, part, *keys = path
        value = self._written.part(KINDS[plural], part)
        for key in keys:
            below = value.value
            value = below[key] if isinstance(below, dict) and key in below else Value(None, "")
        is_written = bool(keys) and value.value is not None
        return {
            "source": source,
            "target": target,
            "name": name,
            "path": path,
            "is_written": is_written,
        }


def read_graph(settings: Mapping[str, Any]) -> GraphReader:
    """Return the reader of a template's graph.

    Args:
        settings: the template as plain values.
    """
    tree = Value.of_plain(settings, "template")
    return GraphReader(tree, is_full=is_full_form(tree))


def part_of_key(key: str) -> str | None:
    """Return the id of the part that a setting's dotted name begins with; None if it is of none.

    Args:
        key: such as `trainers.hunter.epochs`, or `trainer.epochs` and `algorithm` of the short
            form.
    """
    first, _, rest = key.partition(".")
    if first == "algorithm":
        return f"trainers.{default_name('trainer')}"
    if first in PLURALS:
        return f"{PLURALS[first]}.{default_name(first)}"
    name = rest.partition(".")[0]
    return f"{first}.{name}" if first in KINDS and name else None


def _summary(settings: Mapping[str, object]) -> str:
    """Return what a part is, and its first settings that are a word or a number."""
    telling = [settings[name] for name in _TELLING if isinstance(settings.get(name), str)]
    others = [
        f"{name} {_shown(value)}"
        for name, value in settings.items()
        if name not in _TELLING and isinstance(value, int | float | list)
    ]
    return ", ".join([*map(_shown, telling[:2]), *others][:_MAX_SUMMARY])


def _shown(value: object) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"
