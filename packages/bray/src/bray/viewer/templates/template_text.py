"""A template as YAML text and as settings, for the two sides of the builder: text and form."""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, TypedDict

import yaml

from bray.templates import loading
from bray.templates.schema import RENAMED, chosen_schema, tuned_task
from bray.templates.written_parts import PLURALS, is_full_form
from bray.training.algorithm import load_algorithm
from bray.viewer.templates.template_graph import TemplateGraph, part_of_key, read_graph
from bray_core.config import to_mapping
from bray_core.errors import ConfigError, SettingsError
from bray_core.settings.settings_tree import Value, parse, unwrap

SOURCE = "template"
"""Name of the text in the places of problems."""
MAX_PARTS = 400
"""Number of parts of a template that is shown or edited."""


class InspectedTemplate(TypedDict):
    """A template's text, its settings, and everything that is wrong with it."""

    text: str
    settings: dict[str, object] | None
    """None where the text is no YAML of settings."""
    form: dict[str, str] | None
    """`{"algorithm", "task"}` whose settings it has; None where it has no algorithm, or has named
    parts, for which there is no form."""
    problems: list[dict[str, object]]
    """`{"key", "line", "text", "part"}` of each problem; `part` is the id of a part of the graph,
    None where it is of none."""
    graph: TemplateGraph | None
    """Its parts and wires; None where the text is no YAML of settings."""


def inspect_template(text: str) -> InspectedTemplate:
    """Return the settings in a template's text, and everything that is wrong with it.

    Raises:
        ConfigError: it has more than 400 parts: each costs more than its few bytes.
    """
    problems: list[dict[str, object]] = []
    settings = None
    try:
        settings = read_settings(text)
        if settings is not None and has_many_parts(settings):
            raise ConfigError(f"text: expected a template of {MAX_PARTS} parts at most")
        loading.parse(text, SOURCE)  # raises with all problems at once
    except SettingsError as error:
        problems = [
            {
                "key": one.key,
                "line": _line(one.place),
                "text": one.text,
                "part": part_of_key(one.key),
            }
            for one in error.problems
        ]
    graph = None if settings is None else read_graph(settings).graph()
    return {
        "text": text,
        "settings": settings,
        "form": _form(settings),
        "problems": problems,
        "graph": graph,
    }


def has_many_parts(settings: Mapping[str, object]) -> bool:
    """Return whether more parts are written than are looked at."""
    found = [settings.get(plural) for plural in PLURALS.values()]
    return sum(len(parts) for parts in found if isinstance(parts, dict)) > MAX_PARTS


def read_settings(text: str) -> dict[str, object] | None:
    """Return the settings in a template's text; None where they are no settings by name.

    Raises:
        SettingsError: the text is no YAML.
    """
    # A form cannot show what `*name` stands for, and would write it out.
    return _renamed(_settings(parse(text, SOURCE, takes_aliases=False)))


def template_yaml(settings: Mapping[str, object], before: str) -> str:
    """Return settings as YAML, without those that are the default anyway.

    Args:
        settings: the settings that `inspect_template` returns.
        before: the text until now; its comments before the first setting stay.
    """
    head = re.match(r"(?:#[^\n]*\n|[ \t]*\n)*", before)
    try:
        body = yaml.dump(
            without_defaults(settings), Dumper=_Dumper, sort_keys=False, allow_unicode=True
        )
    except RecursionError:
        raise ConfigError("settings: nested too deeply") from None
    return (head[0] if head else "") + body


def without_defaults(settings: Mapping[str, object]) -> dict[str, object]:
    """Return settings without those that are the default, in the order of the schema."""
    if is_full_form(Value.of_plain(settings, SOURCE)):
        return dict(settings)
    try:
        return _without_defaults(settings, chosen_schema(settings))
    except ConfigError:  # no algorithm: then there are no defaults
        return dict(settings)


def _without_defaults(settings: Mapping[str, object], schema: type[Any]) -> dict[str, object]:
    kept: dict[str, object] = {}
    hints = typing.get_type_hints(schema)
    for field in fields(schema):
        if field.name not in settings:
            continue
        value, hint = settings[field.name], hints[field.name]
        if is_dataclass(hint) and isinstance(value, Mapping | None):
            if below := _without_defaults(value or {}, typing.cast(type[Any], hint)):
                kept[field.name] = below
            continue
        value = _number(value) if hint is float or float in typing.get_args(hint) else value
        if not _is_default(value, field):
            kept[field.name] = value
    # Unknown names stay as they are: the check of the text names them to the user.
    known = {field.name for field in fields(schema)}
    return kept | {name: value for name, value in settings.items() if name not in known}


def _number(value: object) -> object:
    """Return the number that a text such as `1e-3` means: YAML 1.1 reads it as a string."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _is_default(value: object, field: Field[Any]) -> bool:
    if field.default is MISSING:
        return False
    default = to_mapping({"value": field.default})["value"]
    # True == 1 in Python, but a whole number for a switch is a mistake that must stay visible.
    return isinstance(value, bool) == isinstance(default, bool) and bool(value == default)


def _settings(root: Value) -> dict[str, object] | None:
    # JSON has no dates, which YAML reads where it can.
    plain = json.loads(json.dumps(unwrap(root), default=str))
    return plain if isinstance(plain, dict) else None


def _renamed(settings: dict[str, object] | None) -> dict[str, object] | None:
    """Return settings with today's names in place of old ones."""
    for old, new in RENAMED.items():
        if settings and old in settings and new not in settings:
            settings = {new: settings.pop(old), **settings}
    return settings


def _form(settings: Mapping[str, object] | None) -> dict[str, str] | None:
    if is_full_form(Value.of_plain(settings or {}, SOURCE)):
        return None
    try:
        chosen_schema(settings or {})
    except ConfigError:
        return None
    algorithm = str((settings or {})["algorithm"])
    source = (settings or {}).get("source")
    task = source.get("environment") if isinstance(source, Mapping) else None
    return {"algorithm": algorithm, "task": tuned_task(load_algorithm(algorithm), task)}


def _line(place: str) -> int | None:
    found = re.search(r":(\d+):\d+$", place)
    return int(found[1]) if found else None


class _Dumper(yaml.SafeDumper):
    """Writes lists in one line."""

    def represent_list(self, data: Any) -> Any:
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)

    def ignore_aliases(self, data: object) -> bool:
        return True


_Dumper.add_representer(list, _Dumper.represent_list)
