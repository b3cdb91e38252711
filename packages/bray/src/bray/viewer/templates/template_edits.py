"""Changes to a template as its graph is drawn: parts added, removed, renamed, joined and set."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from bray.templates.written_parts import PLURALS, WHOLE, default_name
from bray.viewer.http_json import text_field
from bray.viewer.templates.edited_template import JOINED, EditedTemplate, keep_wires
from bray.viewer.templates.part_names import Settings, check_new_name, put
from bray.viewer.templates.template_graph import KINDS, TemplateGraph
from bray.viewer.templates.template_settings import with_settings
from bray.viewer.templates.template_text import MAX_PARTS, has_many_parts
from bray_core.errors import ConfigError

_BY_NAME = {"sources": "agents", "trainers": "inputs", "buffers": "of"}
"""Settings that hold several wires, by the kind that writes them."""
_NEW: dict[str, Settings] = {"trainer": {"algorithm": "ppo"}}
"""What a new part begins with."""


def edited(settings: Mapping[str, Any], edit: Mapping[str, object]) -> Settings:
    """Return a template after one change.

    Args:
        settings: the template as plain values; it stays as it is.
        edit: `{"act": "add", "kind", "name"?}`, `{"act": "remove", "part"}`, `{"act": "rename",
            "part", "name"}`, `{"act": "connect", "from", "to", "name"?, "was"?}`, `{"act":
            "disconnect", "path"}` or `{"act": "set", "part", "settings"}`. A part is given by its
            id, such as `trainers.hunter`; the part "" has the settings of the whole run.

    Raises:
        ConfigError: the change is none of these, or leads to a part that there is not.
    """
    act = text_field(edit, "act")
    if act == "set":
        written = edit.get("settings")
        if not isinstance(written, dict):
            raise ConfigError("settings: expected an object")
        return with_settings(settings, text_field(edit, "part"), written)
    if act not in _ACTS:
        raise ConfigError(f"act: expected set, {', '.join(_ACTS)}, got {act[:50]!r}")
    if has_many_parts(settings):
        raise ConfigError(f"edit: expected a template of {MAX_PARTS} parts at most: edit its text")
    template = EditedTemplate(settings)
    _ACTS[act](template, edit)
    keep_wires(template)
    parts = {key: one for key, one in template.settings.items() if key not in WHOLE}
    return parts | template.settings


def _add(template: EditedTemplate, edit: Mapping[str, object]) -> None:
    kind = text_field(edit, "kind")
    if kind not in PLURALS:
        raise ConfigError(f"kind: expected one of {', '.join(PLURALS)}, got {kind[:50]!r}")
    parts, plural = template.parts(PLURALS[kind]), PLURALS[kind]
    taken = {part["name"] for part in template.graph["parts"] if part["kind"] == kind}
    if edit.get("name") is not None:
        name = text_field(edit, "name")
        check_new_name(plural, name, parts)
    else:
        first = default_name(kind)
        names = (first, *(f"{first}_{i}" for i in range(2, MAX_PARTS + 2)))
        name = next(one for one in names if one not in taken)
    parts[name] = copy.deepcopy(_NEW.get(kind, {}))
    if kind == "source" and len(template.settings.get("sources", {})) == 1:
        parts[name]["environment"] = "CartPole-v1"


def _remove(template: EditedTemplate, edit: Mapping[str, object]) -> None:
    plural, name = template.known(edit, "part")
    parts = template.parts(plural)
    if name not in parts:
        raise ConfigError(f"part: {plural}.{name} is not written: it follows from other parts")
    del parts[name]
    template.refer(plural, name, None)
    template.drop_empty()


def _rename(template: EditedTemplate, edit: Mapping[str, object]) -> None:
    plural, name = template.known(edit, "part")
    parts = template.parts(plural)
    if name not in parts:
        raise ConfigError(f"part: {plural}.{name} is not written: rename what it follows from")
    new = text_field(edit, "name")
    check_new_name(plural, new, set(parts) - {name})
    changed = _named_after(template.graph, f"{plural}.{name}")
    template.settings[plural] = {new if key == name else key: one for key, one in parts.items()}
    for part in changed:
        template.refer(part.partition(".")[0], name, new)
        template.renamed[part] = f"{part.partition('.')[0]}.{new}"
    template.drop_empty()


def _named_after(graph: TemplateGraph, part: str) -> set[str]:
    """Return a part, and those that take its name because the template does not write them."""
    name, found = part.partition(".")[2], {part}
    parts = {one["id"]: one for one in graph["parts"]}
    following = {"trainers": ("models", "buffers"), "models": ("agents",), "sources": ("actors",)}
    for _ in range(2):  # a trainer's model, and that model's agent
        for one in list(found):
            for plural in following.get(one.partition(".")[0], ()):
                other = parts.get(f"{plural}.{name}")
                if other is not None and not other["is_written"]:
                    found.add(other["id"])
    return found


def _connect(template: EditedTemplate, edit: Mapping[str, object]) -> None:
    ends = [template.known(edit, "from"), template.known(edit, "to")]
    kinds = tuple(KINDS[plural] for plural, _ in ends)
    if kinds not in JOINED and kinds[::-1] in JOINED:
        ends, kinds = ends[::-1], kinds[::-1]
    if kinds not in JOINED or ends[0] == ends[1]:
        known = ", ".join(f"{one} → {other}" for one, other in JOINED)
        raise ConfigError(f"to: a {kinds[0]} is not joined to a {kinds[1]}; known: {known}")
    (_, source), (_, target) = ends
    writer, key = JOINED[kinds[0], kinds[1]]
    at_target = PLURALS[kinds[1]] == writer
    name, other = (target, source) if at_target else (source, target)
    settings = template.part(writer, name)
    template.touched = [writer, name, key]
    if kinds in (("agent", "buffer"), ("buffer", "trainer"), ("actor", "source")):
        template.part(ends[0][0] if at_target else ends[1][0], other)  # it has to be written
    if kinds == ("trainer", "model"):
        template.part("models", other)
    if kinds == ("agent", "model"):
        settings.pop("play", None)
    if _BY_NAME.get(writer) != key:
        settings[key] = other
    elif kinds == ("buffer", "buffer"):
        settings["kind"] = "mixture"
        put(settings, [key, other], _share(edit))
    else:
        if key == "inputs" and settings.get("buffer") is not None:
            settings.pop("buffer")  # another name of its experience
        _put_named(settings, key, _word(template, settings, key, edit, other), other, edit)


def _word(
    template: EditedTemplate, settings: Settings, key: str, edit: Mapping[str, object], other: str
) -> str:
    """Return the pattern of agents, or the input, that a wire is for."""
    if edit.get("name"):
        return text_field(edit, "name")[:100]
    if key == "inputs":
        kind = template.part("buffers", other).get("kind")
        return "demonstrations" if kind == "dataset" else "experience"
    players = settings.get(key)
    is_first = not isinstance(players, dict) or players in ({}, {"*": other})
    return "*" if is_first else f"{other}*"


def _put_named(
    settings: Settings, key: str, word: str, other: str, edit: Mapping[str, object]
) -> None:
    """Write a wire by its name, in place of the one that was, as the first that fits holds."""
    before = settings.get(key)
    before = before if isinstance(before, dict) else {}
    was = edit.get("was")
    if isinstance(was, str) and was in before:
        settings[key] = {word if one == was else one: to for one, to in before.items()}
        settings[key][word] = other
        return
    put_last = {"*": before["*"]} if key == "agents" and "*" in before and word != "*" else {}
    rest = {one: to for one, to in before.items() if one not in put_last}
    settings[key] = {**rest, word: other, **put_last}


def _share(edit: Mapping[str, object]) -> float:
    try:
        return float(text_field(edit, "name")) if edit.get("name") else 1.0
    except ValueError:
        raise ConfigError(f"name: expected a share of 0 or more, got {edit['name']!r}") from None


def _disconnect(template: EditedTemplate, edit: Mapping[str, object]) -> None:
    wire = next((one for one in template.graph["wires"] if one["path"] == edit.get("path")), None)
    if wire is None or not wire["is_written"]:
        raise ConfigError("path: expected that of a wire that the template writes")
    *above, last = wire["path"]
    at: Any = template.settings
    for key in above:
        at = at[key]
    del at[last]
    if not at and len(above) == 3:  # `inputs: {}`
        del template.settings[above[0]][above[1]][above[2]]


_ACTS: dict[str, Callable[[EditedTemplate, Mapping[str, object]], None]] = {
    "add": _add,
    "remove": _remove,
    "rename": _rename,
    "connect": _connect,
    "disconnect": _disconnect,
}
