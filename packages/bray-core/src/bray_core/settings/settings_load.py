"""Settings as they were written, with overrides, into the dataclass that they are for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from bray_core.errors import ConfigError, Problem, SettingsError
from bray_core.settings.settings_build import build
from bray_core.settings.settings_tree import Value, override, place_of, unwrap

T = TypeVar("T")

COMMAND_LINE = "command line"
PREFIX = "BRAY_"
"""First letters of environment variables that set something."""


def load_tree(
    tree: Value,
    schema: type[T] | Callable[[Mapping[str, Any]], type[T]],
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    renamed: Mapping[str, str] | None = None,
) -> T:
    """Read settings into the dataclass `schema`; arguments and errors as in `config.load_yaml`.

    Args:
        tree: what `settings_tree.read` returned; it stays as it is, and can be read again.
    """
    root = overridden(tree.copy(), overrides, environment, renamed)
    if isinstance(schema, type):
        return build(root, schema)
    if not isinstance(root.value, dict):
        text = f"top level: expected settings, got {unwrap(root)!r}"
        raise SettingsError([Problem(root.place, "", text)])
    try:
        chosen = schema({name: unwrap(child) for name, child in root.value.items()})
    except ConfigError as error:
        key = str(error).partition(":")[0]
        raise SettingsError([Problem(place_of(root, str(error)), key, str(error))]) from error
    return build(root, chosen)


def overridden(
    root: Value,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    renamed: Mapping[str, str] | None = None,
) -> Value:
    """Return the settings with old names replaced and overrides written into them."""
    for old, new in (renamed or {}).items():
        if isinstance(root.value, dict) and old in root.value:
            child = root.value.pop(old)
            if new in root.value:
                text = f"{old}: is `{new}` today, and that is given, too: remove one"
                raise SettingsError([Problem(child.place, old, text)])
            root.value = {new: child, **root.value}
    for name, key, text in from_environment(environment or {}):
        override(root, f"{key}={text}", f"environment {name}")
    for written in overrides:
        override(root, written, COMMAND_LINE)
    return root


def from_environment(environment: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return the variables that set something: name, dotted key of the setting, value."""
    return [
        (name, name.removeprefix(PREFIX).lower().replace("__", "."), text)
        for name, text in environment.items()
        if name.startswith(PREFIX) and "__" in name
    ]
