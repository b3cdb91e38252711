"""The names of a template's parts, and the settings in which other parts are named."""

from __future__ import annotations

import copy
from collections.abc import Container, Mapping, Sequence
from typing import Any, TypeAlias

from bray.templates.written_parts import NAME, PLURALS, default_name
from bray_core.errors import ConfigError

Settings: TypeAlias = dict[str, Any]
"""A template, or a part of one, as plain values."""


def named(settings: Mapping[str, Any]) -> Settings:
    """Return a copy of a template of which every part stands below its kind by name.

    Args:
        settings: the template as plain values, of either form.
    """
    found = copy.deepcopy(dict(settings))
    for kind, plural in PLURALS.items():
        if plural in found and found[plural] is None:
            found[plural] = {}
        if kind in found and plural not in found:
            only = found.pop(kind)
            found[plural] = {default_name(kind): {} if only is None else only}
    if "algorithm" in found and isinstance(found.setdefault("trainers", {}), dict):
        only = found["trainers"].setdefault(default_name("trainer"), {})
        if len(found["trainers"]) == 1 and isinstance(only, dict):
            found["trainers"][default_name("trainer")] = {
                "algorithm": found.pop("algorithm"),
                **only,
            }
    return found


def check_new_name(plural: str, name: str, taken: Container[str]) -> None:
    """Refuse a name that a new part cannot have.

    Args:
        plural: key of its kind, such as `trainers`.
        name: the name.
        taken: the names that there are.

    Raises:
        ConfigError: it is none that a template takes, or another part has it.
    """
    if not NAME.fullmatch(name) or len(name) > 100:
        raise ConfigError(
            "name: expected small letters, digits and _, beginning with a letter, got "
            f"{name[:100]!r}"
        )
    if name in taken:
        raise ConfigError(f"name: {plural}.{name} there is already: choose another")


def refer(settings: object, key: str, name: str, new: str | None) -> None:
    """Put another name, or none, where a setting names a part.

    Args:
        settings: settings of a part.
        key: the setting: a name, or names by what each is for.
        name: name of the part until now.
        new: its name from now on; None: there is no such part any more.
    """
    if not isinstance(settings, dict):
        return
    value = settings.get(key)
    if value == name:
        if new is None:
            del settings[key]
        else:
            settings[key] = new
    elif isinstance(value, dict) and key != "of":
        for word in [word for word, to in value.items() if to == name]:
            refer(value, word, name, new)
        if not value:
            del settings[key]


def rename_key(shares: object, name: str, new: str | None) -> None:
    """Put another name, or none, in place of a key, where it stood.

    Args:
        shares: values by name; anything else is left alone.
        name: the key.
        new: the key from now on; None removes it.
    """
    if not isinstance(shares, dict) or name not in shares:
        return
    kept = [(new if key == name else key, share) for key, share in shares.items()]
    shares.clear()
    shares.update({key: share for key, share in kept if key is not None})


def put(settings: Settings, keys: Sequence[str], value: object) -> None:
    """Write a setting below others.

    Args:
        settings: where it is written.
        keys: the names that lead to it.
        value: what is written.
    """
    for key in keys[:-1]:
        below = settings.get(key)
        settings[key] = below if isinstance(below, dict) else {}
        settings = settings[key]
    settings[keys[-1]] = value
