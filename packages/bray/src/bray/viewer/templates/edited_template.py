"""A template while it is changed: its parts by name, and the wires that a change must not move."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bray.templates.written_parts import PLURALS
from bray.viewer.http_json import text_field
from bray.viewer.templates.part_names import Settings, named, put, refer, rename_key
from bray.viewer.templates.template_graph import GraphWire, TemplateGraph, read_graph
from bray_core.errors import ConfigError

JOINED = {
    ("source", "agent"): ("sources", "agents"),
    ("agent", "model"): ("agents", "model"),
    ("agent", "buffer"): ("agents", "buffer"),
    ("buffer", "trainer"): ("trainers", "inputs"),
    ("trainer", "model"): ("trainers", "model"),
    ("actor", "source"): ("sources", "actor"),
    ("render", "source"): ("renders", "source"),
    ("buffer", "buffer"): ("buffers", "of"),
}
"""Which kinds a wire joins → the kind that writes it, and in which setting."""


class EditedTemplate:
    """A template of which every part has a name, while it is changed.

    Args:
        settings: the template as plain values, of either form; it stays as it is.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.graph: TemplateGraph = read_graph(settings).graph()
        self.settings = named(settings)
        self.renamed: dict[str, str] = {}
        """Id of a part until now → its id from now on."""
        self.touched: list[str] = []
        """Keys of the setting that the change is about: its wire is not kept."""

    def parts(self, plural: str) -> Settings:
        """Return the settings of a kind's parts by name.

        Raises:
            ConfigError: something else is written there.
        """
        found = self.settings.setdefault(plural, {})
        if not isinstance(found, dict):
            raise ConfigError(f"{plural}: expected settings by name: correct the text first")
        return found

    def part(self, plural: str, name: str) -> Settings:
        """Return the settings of a part, which is written from now on.

        Raises:
            ConfigError: something else is written there.
        """
        parts = self.parts(plural)
        if not isinstance(parts.get(name), dict | None):
            raise ConfigError(f"{plural}.{name}: expected settings: correct the text first")
        if parts.get(name) is None:
            parts[name] = {}
        found: Settings = parts[name]
        return found

    def known(self, content: Mapping[str, object], name: str) -> tuple[str, str]:
        """Return the kind's key and the name of a part that there is.

        Args:
            content: what was posted.
            name: under which its id is there.

        Raises:
            ConfigError: there is no such part.
        """
        told = text_field(content, name)
        if told not in {part["id"] for part in self.graph["parts"]}:
            raise ConfigError(f"{name}: expected the id of a part, got {told[:100]!r}")
        plural, _, part = told.partition(".")
        return plural, part

    def refer(self, plural: str, name: str, new: str | None) -> None:
        """Put another name, or none, wherever a part is named.

        Args:
            plural: key of its kind.
            name: its name until now.
            new: its name from now on; None: it is there no more.
        """
        for (first, second), (writer, key) in JOINED.items():
            named = PLURALS[first if PLURALS[second] == writer else second]
            if named == plural:
                for settings in self.parts(writer).values():
                    refer(settings, key, name, new)
        if plural == "buffers":
            for settings in self.parts("trainers").values():
                refer(settings, "buffer", name, new)
            for kind, key in (("buffers", "of"), ("agents", "buffer")):
                for settings in self.parts(kind).values():
                    rename_key(settings.get(key) if isinstance(settings, dict) else None, name, new)
        if plural == "agents":
            for key in ("agent", "against"):
                refer(self.settings.get("goal"), key, name, new)

    def drop_empty(self) -> None:
        """Remove the keys of kinds that have no part."""
        for plural in PLURALS.values():
            if self.settings.get(plural) == {}:
                del self.settings[plural]


def keep_wires(template: EditedTemplate) -> None:
    """Write the wires that followed from names, where after the change others would follow.

    Args:
        template: the template, which was changed.
    """
    after = read_graph(template.settings).graph()
    for wire in template.graph["wires"]:
        if wire["is_written"] or wire["path"][:3] == template.touched:
            continue
        ends = [template.renamed.get(wire[end], wire[end]) for end in ("source", "target")]
        if ends not in [[one["source"], one["target"]] for one in after["wires"]]:
            parts = {one["id"]: one["is_written"] for one in after["parts"]}
            if _keep(template, wire, ends, parts):  # which other wires may follow
                after = read_graph(template.settings).graph()


def _keep(
    template: EditedTemplate, wire: GraphWire, ends: list[str], parts: Mapping[str, bool]
) -> bool:
    """Write one wire, if what it joins is there still; return whether it was written."""
    plural, name, *keys = wire["path"]
    writer = template.renamed.get(f"{plural}.{name}", f"{plural}.{name}")
    other = ends[1] if ends[0] == writer else ends[0]
    kind, _, part = other.partition(".")
    if writer not in parts or not keys:
        return False
    if kind == "models" and plural == "trainers":
        is_kept = len(template.parts(plural)) > 1 and (other in parts or not _was(template, other))
    elif kind == "agents":
        is_kept = other in parts
    else:
        is_kept = parts[writer] and parts.get(other, False)
    if is_kept and kind == "models":
        template.part(kind, part)
    if is_kept:
        put(template.part(plural, writer.partition(".")[2]), keys, part)
    return is_kept


def _was(template: EditedTemplate, part: str) -> bool:
    """Return whether a part was written before the change, under whatever name."""
    written = (one["id"] for one in template.graph["parts"] if one["is_written"])
    return part in (template.renamed.get(one, one) for one in written)
