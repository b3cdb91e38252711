"""The JSON Schema of templates, of which editors complete and check YAML: both forms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from bray import registry
from bray.sources.source_kind import find_source_kind
from bray.templates.full_form import WholeSettings
from bray.templates.loading import path_of
from bray.templates.part_classes import OF_ALGORITHM
from bray.templates.part_settings import (
    BUFFER_KINDS,
    AgentWires,
    BufferWires,
    ModelWires,
    NamedRenderPart,
    SourceWires,
    TrainerWires,
)
from bray.templates.schema import part_schema, schema
from bray.templates.written_parts import NAME, PLURALS
from bray.training.algorithm import NoSettings, load_algorithm
from bray_core.settings.json_schema import json_schema
from bray_core.settings.settings_tree import SHARED, read, unwrap

_WIRES = {"model": ModelWires, "agent": AgentWires, "buffer": BufferWires, "source": SourceWires}
_WORDS = {"type": ["object", "null"]}

_SHARED: dict[str, Any] = {"patternProperties": {f"^{SHARED}": {}}}
"""Keys of the top level for what aliases stand for."""


@dataclass(frozen=True, slots=True)
class OwnCode:
    """Classes of the user's that templates name; making a schema of them imports them."""

    algorithms: tuple[str, ...] = ()
    """Algorithms, `module:Class` or `file.py:Class`."""
    sources: tuple[str, ...] = ()
    """Kinds of sources, likewise."""

    @classmethod
    def named_in(cls, templates: Iterable[str]) -> OwnCode:
        """Return the classes that templates name, without importing them.

        Args:
            templates: names, paths or trials.

        Raises:
            ConfigError: there is no such template, or it is no YAML.
        """
        algorithms: list[Any] = []
        sources: list[Any] = []
        for template in templates:
            content: Any = unwrap(read(path_of(template)))
            if not isinstance(content, Mapping):
                continue
            algorithms += [content.get("algorithm"), *_values(content, "trainer", "algorithm")]
            sources += _values(content, "source", "kind")
        return cls(_own(algorithms), _own(sources))


def _values(content: Mapping[str, Any], kind: str, key: str) -> list[Any]:
    """Return what the parts of a kind say of a key."""
    many = content.get(PLURALS[kind])
    parts = [content.get(kind), *(many.values() if isinstance(many, Mapping) else ())]
    return [part.get(key) for part in parts if isinstance(part, Mapping)]


def _own(names: Iterable[Any]) -> tuple[str, ...]:
    found = (name for name in names if isinstance(name, str) and registry.is_own_code(name))
    return tuple(dict.fromkeys(found))


def json_schema_of_all(own: OwnCode | None = None) -> dict[str, Any]:
    """Return the JSON Schema of templates.

    In the short form, what a part may hold follows from the algorithm; in the full form from the
    part's own `algorithm` or `kind`.

    Args:
        own: classes of the user's whose settings are known, too; a template may name others, whose
            settings then are not checked.

    Raises:
        ConfigError: one of them cannot be imported, or is no such class.
    """
    own = own or OwnCode()
    names = [*registry.names(), *own.algorithms]
    branches = [
        {
            "if": {"properties": {"algorithm": {"const": name}}},
            "then": {"$ref": _ref(name)},
        }
        for name in names
    ]
    has_kind = {"properties": {"source": {"type": "object", "required": ["kind"]}}}
    is_full = [{"required": [plural]} for plural in PLURALS.values()]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A template of bray",
        "type": "object",
        "if": {"anyOf": [*is_full, {"required": ["source"], **has_kind}]},
        "then": {"$ref": "#/$defs/named_parts"},
        "else": {
            "properties": {"algorithm": _algorithm(names)},
            "required": ["algorithm"],
            "allOf": branches,
        },
        "$defs": {
            **{name: json_schema(schema(name)) | _SHARED for name in names},
            "named_parts": _named_parts(names),
            **{f"{kind}_part": _part(kind, names, own) for kind in PLURALS},
            **{f"{name}_settings": _trainer(name) for name in names},
            **{f"{name}_trainer": _named_trainer(name) for name in names},
        },
    }


def _ref(name: str) -> str:
    """Return the pointer to a definition: JSON Pointer writes `/` and `~` in its own way."""
    return "#/$defs/" + quote(name.replace("~", "~0").replace("/", "~1"), safe="~:")


def _algorithm(names: Sequence[str]) -> dict[str, Any]:
    """Return the schema of an algorithm's name: a known one, or that of a class of the user's."""
    return {"anyOf": [{"enum": list(names)}, {"type": "string", "pattern": ":"}]}


def _named_parts(names: Sequence[str]) -> dict[str, Any]:
    """Return the schema of the full form, in which parts may be singular, too."""
    whole = json_schema(WholeSettings)["properties"]
    parts: dict[str, Any] = {"algorithm": _algorithm(names)}
    for kind, plural in PLURALS.items():
        one = {"$ref": f"#/$defs/{kind}_part"}
        by_name = {"patternProperties": {f"^{NAME.pattern}$": one}, "additionalProperties": False}
        parts[plural] = {**_WORDS, **by_name}
        parts[kind] = one if kind != "trainer" else _WORDS  # whose algorithm stands beside it
    beside = [
        {
            "if": {"properties": {"algorithm": {"const": name}}, "required": ["algorithm"]},
            "then": {"properties": {"trainer": {"$ref": _ref(f"{name}_settings")}}},
        }
        for name in names
    ]
    return {
        "type": "object",
        "properties": parts | whole,
        **_SHARED,
        "additionalProperties": False,
        "allOf": beside,
    }


def _part(kind: str, names: Sequence[str], own: OwnCode) -> dict[str, Any]:
    """Return the schema of one part of a kind."""
    if kind == "render":
        return json_schema(NamedRenderPart) | _WORDS
    if kind == "trainer":
        known: list[dict[str, Any]] = [{"$ref": _ref(f"{name}_trainer")} for name in names]
        return {"oneOf": [*known, _own_code("algorithm", own.algorithms)]}
    if kind == "source":
        return {"oneOf": [*_sources(names, own), _own_code("kind", own.sources)]}
    if kind == "buffer":
        made = {name: part_schema(one, {}, BufferWires) for name, one in BUFFER_KINDS.items()}
        by_kind = [_keyed(json_schema(one), "kind", name) for name, one in made.items()]
        unsaid = {"not": {"type": "object", "required": ["kind"], "properties": _TEXT}}
        return {"anyOf": [*by_kind, {"allOf": [unsaid, _of_algorithms(kind, names)]}]}
    return _of_algorithms(kind, names)


_TEXT = {"kind": {"type": "string"}}


def _of_algorithms(kind: str, names: Sequence[str]) -> dict[str, Any]:
    """Return the schema of a part that is of one of the classes that algorithms name."""
    classes = {load_algorithm(name).config_of(kind) for name in names}
    classes |= {NoSettings} if kind == "agent" else set()
    made = [
        json_schema(part_schema(one, {}, _WIRES.get(kind))) | _WORDS
        for one in sorted(classes, key=lambda one: one.__name__)
    ]
    return {"anyOf": made}


def _trainer(name: str) -> dict[str, Any]:
    """Return the schema of the settings of an algorithm, which is named here or beside it."""
    config = load_algorithm(name).config_of("trainer")
    made = json_schema(part_schema(config, {}, TrainerWires))
    needed = [one for one in made.get("required", []) if one != "algorithm"]
    return {**made, "required": needed, **_WORDS}


def _named_trainer(name: str) -> dict[str, Any]:
    """Return the schema of a trainer that names its algorithm."""
    return {
        "allOf": [{"$ref": _ref(f"{name}_settings")}],
        "type": "object",
        "properties": {"algorithm": {"const": name}},
        "required": ["algorithm"],
    }


def _sources(names: Sequence[str], own: OwnCode) -> list[dict[str, Any]]:
    """Return the schemas of sources by their kind."""
    kinds = {"kind": {"enum": [*OF_ALGORITHM, None]}}
    found = [{"allOf": [{"properties": kinds}, _of_algorithms("source", names)]}]
    for name in (*registry.names("bray.sources"), *own.sources):
        if name not in OF_ALGORITHM:
            is_own = registry.is_own_code(name)
            kind = find_source_kind(name) if is_own else registry.find("bray.sources", name)
            config: type[Any] = kind.Config
            made = json_schema(part_schema(config, {}, SourceWires))
            found.append(_keyed(made, "kind", name))
    return found


def _keyed(made: Mapping[str, Any], key: str, value: str) -> dict[str, Any]:
    """Return the schema of a part which is that of one value of a key, and needs it."""
    fixed = {**made["properties"][key], "const": value}
    for other in ("anyOf", "enum", "default"):
        fixed.pop(other, None)
    return {
        **made,
        "properties": {**made["properties"], key: fixed},
        "required": list(dict.fromkeys([key, *made.get("required", [])])),
    }


def _own_code(key: str, known: Sequence[str]) -> dict[str, Any]:
    """Return the schema of a part whose class is one of the user's, but for those that are known:
    only the owner's machine knows it."""
    named: dict[str, Any] = {key: {"type": "string", "pattern": ":"}}
    if known:
        named[key]["not"] = {"enum": list(known)}
    return {"type": "object", "properties": named, "required": [key]}
