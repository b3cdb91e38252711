"""The JSON Schema of templates, of which editors complete and check YAML: both forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bray import registry
from bray.templates.full_form import WholeSettings
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

_WIRES = {"model": ModelWires, "agent": AgentWires, "buffer": BufferWires, "source": SourceWires}
_WORDS = {"type": ["object", "null"]}


def json_schema_of_all() -> dict[str, Any]:
    """Return the JSON Schema of templates.

    In the short form, what a part may hold follows from the algorithm; in the full form from the
    part's own `algorithm` or `kind`.
    """
    names = registry.names()
    branches = [
        {
            "if": {"properties": {"algorithm": {"const": name}}},
            "then": {"$ref": f"#/$defs/{name}"},
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
            "properties": {"algorithm": {"enum": names}},
            "required": ["algorithm"],
            "allOf": branches,
        },
        "$defs": {
            **{name: json_schema(schema(name)) for name in names},
            "named_parts": _named_parts(),
            **{f"{kind}_part": _part(kind) for kind in PLURALS},
            **{f"{name}_trainer": _trainer(name) for name in names},
        },
    }


def _named_parts() -> dict[str, Any]:
    """Return the schema of the full form, in which parts may be singular, too."""
    whole = json_schema(WholeSettings)["properties"]
    parts: dict[str, Any] = {"algorithm": {"enum": registry.names()}}
    for kind, plural in PLURALS.items():
        one = {"$ref": f"#/$defs/{kind}_part"}
        by_name = {"patternProperties": {f"^{NAME.pattern}$": one}, "additionalProperties": False}
        parts[plural] = {**_WORDS, **by_name}
        parts[kind] = one if kind != "trainer" else _WORDS  # whose algorithm stands beside it
    return {"type": "object", "properties": parts | whole, "additionalProperties": False}


def _part(kind: str) -> dict[str, Any]:
    """Return the schema of one part of a kind."""
    if kind == "render":
        return json_schema(NamedRenderPart) | _WORDS
    if kind == "trainer":
        known: list[dict[str, Any]] = [
            {"$ref": f"#/$defs/{name}_trainer"} for name in registry.names()
        ]
        return {"oneOf": [*known, _own_code("algorithm")]}
    if kind == "source":
        return {"oneOf": [*_sources(), _own_code("kind")]}
    if kind == "buffer":
        made = {name: part_schema(one, {}, BufferWires) for name, one in BUFFER_KINDS.items()}
        by_kind = [_keyed(json_schema(one), "kind", name) for name, one in made.items()]
        own = {"not": {"type": "object", "required": ["kind"], "properties": _TEXT}}
        return {"anyOf": [*by_kind, {"allOf": [own, _of_algorithms(kind)]}]}
    return _of_algorithms(kind)


_TEXT = {"kind": {"type": "string"}}


def _of_algorithms(kind: str) -> dict[str, Any]:
    """Return the schema of a part that is of one of the classes that algorithms name."""
    classes = {load_algorithm(name).config_of(kind) for name in registry.names()}
    classes |= {NoSettings} if kind == "agent" else set()
    made = [
        json_schema(part_schema(one, {}, _WIRES.get(kind))) | _WORDS
        for one in sorted(classes, key=lambda one: one.__name__)
    ]
    return {"anyOf": made}


def _trainer(name: str) -> dict[str, Any]:
    config = load_algorithm(name).config_of("trainer")
    return _keyed(json_schema(part_schema(config, {}, TrainerWires)), "algorithm", name)


def _sources() -> list[dict[str, Any]]:
    """Return the schemas of sources by their kind."""
    kinds = {"kind": {"enum": [*OF_ALGORITHM, None]}}
    found = [{"allOf": [{"properties": kinds}, _of_algorithms("source")]}]
    for name in registry.names("bray.sources"):
        if name not in OF_ALGORITHM:
            config = registry.find("bray.sources", name).Config
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


def _own_code(key: str) -> dict[str, Any]:
    """Return the schema of a part whose class is yours: only the owner's machine knows it."""
    named = {key: {"type": "string", "pattern": ":"}}
    return {"type": "object", "properties": named, "required": [key]}
