"""The settings of one part of a template, replaced as the form beside its graph has them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from bray.templates.written_parts import PLURALS, WHOLE, default_name
from bray.viewer.templates.part_names import Settings
from bray.viewer.templates.template_graph import KINDS, GraphReader, read_graph
from bray_core.errors import ConfigError
from bray_core.settings.settings_tree import written_name


def with_settings(template: Mapping[str, Any], part: str, written: Settings) -> Settings:
    """Return a template in which one part has other settings.

    The short form stays short. Settings that a part has no longer, since it has another algorithm
    or kind, are left out.

    Args:
        template: the template as plain values; it stays as it is.
        part: id of the part, such as `trainers.hunter`; nothing for the settings of the whole run.
        written: all that the part has from now on.

    Raises:
        ConfigError: there is no such part.
    """
    settings = copy.deepcopy(dict(template))
    if not part:
        rest = {key: one for key, one in settings.items() if key not in WHOLE}
        return rest | {key: one for key, one in written.items() if key in WHOLE}
    before = read_graph(settings)
    if part not in {one["id"] for one in before.graph()["parts"]}:
        raise ConfigError(f"part: expected the id of a part, got {part[:100]!r}")
    plural, _, name = part.partition(".")
    kind = KINDS[plural]
    if not isinstance(settings.get(plural), dict | None):
        raise ConfigError(f"{plural}: expected settings by name: correct the text first")
    if _is_singular(settings, kind, name):
        settings = _set_singular(settings, kind, written)
    else:
        settings = {**settings, plural: {**(settings.get(plural) or {}), name: written}}
    _drop_forgotten(settings, part, before, read_graph(settings))
    return settings


def _is_singular(settings: Settings, kind: str, name: str) -> bool:
    """Return whether a part is the only one of its kind, and written as such."""
    if PLURALS[kind] in settings or name != default_name(kind):
        return False
    is_short = not any(plural in settings for plural in PLURALS.values())
    return kind in settings or is_short or (kind == "trainer" and "algorithm" in settings)


def _set_singular(settings: Settings, kind: str, written: Settings) -> Settings:
    if kind != "trainer":
        return {**settings, kind: written}
    written = dict(written)
    algorithm = written.pop("algorithm", None)
    rest = {key: one for key, one in settings.items() if key not in ("algorithm", "trainer")}
    head = {} if algorithm is None else {"algorithm": algorithm}
    return {**head, **rest, **({"trainer": written} if written else {})}


def _drop_forgotten(settings: Settings, part: str, before: GraphReader, after: GraphReader) -> None:
    """Remove the settings of a part that it had with another algorithm or kind."""
    old, new = before.classes().get(part), after.classes().get(part)
    if old is None or new is None:
        return
    known, now = ({written_name(one) for one in fields(schema)} for schema in (old, new))
    plural, _, name = part.partition(".")
    singular: Settings | None = settings.get(KINDS[plural])
    own: Settings = settings[plural][name] if plural in settings else singular or {}
    for key in (known - now) & set(own):
        del own[key]
