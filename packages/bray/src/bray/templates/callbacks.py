"""The callbacks that a template names: found, checked and made where its owner runs it."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from bray.callbacks import Callback
from bray_core.config import from_mapping
from bray_core.errors import ConfigError
from bray_core.process.user_modules import check_code_name, find_named_code
from bray_core.settings.choice import closest

NamedCallback: TypeAlias = str | Mapping[str, Any]
"""`module:Class` or `file.py:Class`, or `{class: …, settings: {…}}`."""

_KEYS = ("class", "settings")


def check_names(callbacks: Sequence[NamedCallback]) -> None:
    """Refuse entries that name no class, without importing any.

    Raises:
        ConfigError: begins with the entry, such as `callbacks[0]`.
    """
    for index, entry in enumerate(callbacks):
        _split(f"callbacks[{index}]", entry)


def make_callbacks(callbacks: Sequence[NamedCallback]) -> list[Callback]:
    """Import the classes and make the callbacks, which runs code of the template's owner.

    A class that has a dataclass `Config` is made with it, another with the settings as arguments.

    Raises:
        ConfigError: a class is not found or is none, or does not take the settings.
    """
    return [_maker(f"callbacks[{index}]", entry)() for index, entry in enumerate(callbacks)]


def check_callbacks(callbacks: Sequence[NamedCallback]) -> None:
    """Import the classes and refuse settings that they do not take, without making any.

    Raises:
        ConfigError: see `make_callbacks`.
    """
    for index, entry in enumerate(callbacks):
        _maker(f"callbacks[{index}]", entry)


def _maker(where: str, entry: NamedCallback) -> Callable[[], Callback]:
    """Return what makes a callback, its settings checked.

    Raises:
        ConfigError: see `make_callbacks`.
    """
    name, settings = _split(where, entry)
    kind = _found(where, name)
    own = getattr(kind, "Config", None)
    if isinstance(own, type) and dataclasses.is_dataclass(own):
        config = from_mapping(settings, own, f"{where}.settings")
        return lambda: _called(where, name, kind, config)
    try:
        inspect.signature(kind).bind(**settings)
    except TypeError as error:
        raise ConfigError(f"{where}: {name} does not take its settings: {error}") from error
    return lambda: _called(where, name, kind, **settings)


def _called(where: str, name: str, kind: Any, *arguments: Any, **settings: Any) -> Callback:
    try:
        made: Callback = kind(*arguments, **settings)
    except Exception as error:  # the boundary to code of others
        words = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{where}: {name} cannot be made: {words}") from error
    return made


def _found(where: str, name: str) -> type[Callback]:
    found = find_named_code(where, name)
    if not isinstance(found, type) or not issubclass(found, Callback):
        raise ConfigError(f"{where}: {name!r}: expected a subclass of bray.Callback, got {found!r}")
    return found


def _split(where: str, entry: NamedCallback) -> tuple[str, dict[str, Any]]:
    """Return the name of an entry's class, and its settings."""
    if isinstance(entry, str):
        return check_code_name(where, entry), {}
    if unknown := [key for key in entry if key not in _KEYS]:
        raise ConfigError(
            f"{where}.{unknown[0]}: unknown key{closest(str(unknown[0]), _KEYS)}; allowed: "
            f"{', '.join(_KEYS)}"
        )
    settings = entry.get("settings") or {}
    if not isinstance(settings, Mapping) or not all(isinstance(name, str) for name in settings):
        raise ConfigError(f"{where}.settings: expected settings by name, got {settings!r}")
    return check_code_name(f"{where}.class", entry.get("class")), dict(settings)
