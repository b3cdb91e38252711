"""The JSON Schema of one part of a template, of which the page makes a form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bray import registry
from bray.templates.full_form import WholeSettings
from bray.templates.part_settings import BufferWires, NamedRenderPart, SourceWires, TrainerWires
from bray.training.algorithm import PARTS
from bray.viewer.templates.template_graph import KINDS, read_graph
from bray_core.errors import ConfigError
from bray_core.settings.json_schema import json_schema

_WIRES = ("model", "buffer", "inputs", "agents", "actor", "of")
"""Settings that lead to other parts; the page joins them otherwise."""
_UNKNOWN: dict[str, type[Any]] = {
    "trainers": TrainerWires,
    "sources": SourceWires,
    "buffers": BufferWires,
    "renders": NamedRenderPart,
}
"""What a part has whose algorithm or kind is not known."""
_CHOICES = {"trainers": ("algorithm", "bray.algorithms"), "sources": ("kind", "bray.sources")}


def form_schema(settings: Mapping[str, Any], part: str) -> dict[str, Any]:
    """Return the JSON Schema of a part's settings, without those that are wires.

    Args:
        settings: the template as plain values.
        part: id of the part, such as `trainers.hunter`; nothing for the settings of the whole run.

    Raises:
        ConfigError: there is no such part.
    """
    if not part:
        return json_schema(WholeSettings)
    reader = read_graph(settings)
    found = next((one for one in reader.graph()["parts"] if one["id"] == part), None)
    if found is None:
        raise ConfigError(f"part: expected the id of a part, got {part[:100]!r}")
    plural = part.partition(".")[0]
    schema = reader.classes().get(part) or _UNKNOWN.get(plural)
    made: dict[str, Any] = {"properties": {}} if schema is None else json_schema(schema)
    wires = [*_WIRES, *(["source"] if KINDS[plural] == "render" else [])]
    for name in wires:
        made["properties"].pop(name, None)
    if plural in _CHOICES:
        name, group = _CHOICES[plural]
        now = found["settings"].get(name)
        known = registry.names(group)
        extra = [now] if isinstance(now, str) and now not in known else []
        before = made["properties"].get(name, {})
        choices = {"enum": [*known, *extra], "description": before.get("description", "")}
        made["properties"][name] = choices
    words = PARTS.get(KINDS[plural], "How episodes are shown.")
    return {**_telling_first(made), "description": words}


def _telling_first(made: dict[str, Any]) -> dict[str, Any]:
    """Return a schema in which what says most of a part comes first."""
    first = [n for n in ("algorithm", "kind", "environment", "load") if n in made["properties"]]
    properties = {name: made["properties"][name] for name in first}
    return {**made, "properties": properties | made["properties"]}
