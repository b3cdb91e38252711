"""What a template or a command line may name: bray's own parts, installed ones, and yours.

A name is looked up among bray's own modules (of `bray.algorithms`), then among the entry points
that other distributions declare (`[project.entry-points."bray.algorithms"]`). `module:Class` and
`file.py:Class` name a class of yours: its module is imported, so only what its owner types is
looked up that way, never what comes from a network. Nothing heavy is imported here.
"""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from bray_core.errors import ConfigError
from bray_core.process.user_modules import (
    CLASS_FORMS,
    NOT_FOUND,
    find_named_code,
    import_user_code,
)
from bray_core.settings.choice import check_choice

REMOVED = {
    "selfplay": "ppo with `source.kind: matches` does what it did: see docs/guides/league.md",
    "league": "ppo with `source.kind: matches` and `opponents.rule: league` does what it did: see "
    "docs/guides/league.md",
}
"""Algorithms of earlier versions, and what does now what they did."""
_FOLDERS = {"bray.algorithms": "algorithms"}
"""Groups of which bray's own members are the modules of a folder."""
_DECLARED = {
    "bray.sources": {
        "environments": "bray.sources.kinds:EnvironmentsKind",
        "gamecores": "bray.sources.kinds:GamecoresKind",
        "agents": "bray.sources.kinds:AgentsKind",
        "matches": "bray.sources.kinds:MatchesKind",
    }
}
"""Groups of which bray's own members are classes, by name."""


def is_declared(group: str, name: str) -> bool:
    """Return whether a name of a group is one of bray's own classes.

    Args:
        group: such as `bray.sources`.
        name: the name.
    """
    return name in _DECLARED.get(group, {})


def names(group: str = "bray.algorithms") -> list[str]:
    """Return the names of a group that can be looked up: bray's own and installed ones.

    Args:
        group: `bray.algorithms`, `bray.networks` or `bray.sources`.
    """
    return sorted({*_own(group), *_installed(group)})


def is_own_code(name: str) -> bool:
    """Return whether a name is that of a module or file of yours, which looking up would run."""
    return ":" in name


def find(group: str, name: str, base: type[Any] | None = None) -> Any:
    """Return the class of a name.

    Args:
        group: name of the group, see `names`.
        name: a name of the group, `module:Class`, or `file.py:Class`.
        base: class that it must be derived from; None takes any class.

    Raises:
        ConfigError: there is no such name, or what it names is no such class; begins with the
            group's last word, such as `algorithms`.
    """
    word = group.rpartition(".")[2].removesuffix("s")
    if is_own_code(name):
        return _checked(word, name, find_named_code(word, name), base)
    if group == "bray.algorithms" and name in REMOVED and name not in names(group):
        raise ConfigError(f"algorithm: {name!r} was removed: {REMOVED[name]}")
    if not (known := names(group)):
        raise ConfigError(
            f"{word}: expected {CLASS_FORMS}, got {name!r}: no installed package brings any"
        )
    check_choice(word, name, known)
    if is_declared(group, name):
        where, _, attribute = _DECLARED[group][name].partition(":")
        return getattr(importlib.import_module(where), attribute)
    if name in _own(group):
        module = importlib.import_module(f"{group}.{name}")
        return _only_class(word, name, module, base)
    point = _installed(group)[name]
    try:
        import_user_code(point.module)  # what its code raises is told in words
        found = point.load()
    except NOT_FOUND as error:
        raise ConfigError(
            f"{word}: {name!r} is installed, but cannot be loaded: {error}"
        ) from error
    return _checked(word, name, found, base)


def check_call(where: str, called: Any, places: Sequence[str], names: Sequence[str] = ()) -> None:
    """Refuse a method of what was named that cannot be called as bray calls it.

    Args:
        where: what is wrong and what was expected, for the message.
        called: the method, bound as it will be.
        places: names of the arguments that are given by their places.
        names: arguments that are given by their names.

    Raises:
        ConfigError: it does not take them; says what it takes.
    """
    import inspect  # none of what is only looked up needs it

    signature = inspect.signature(called)
    try:
        signature.bind(*places, **dict.fromkeys(names))
    except TypeError as error:
        wanted = ", ".join([*places, *["*"] * bool(names), *names])
        raise ConfigError(f"{where} that takes ({wanted}), got {signature}") from error


def _own(group: str) -> list[str]:
    folder = _FOLDERS.get(group)
    if folder is None:
        return [*_DECLARED.get(group, {})]
    return [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent / folder)])]


def _installed(group: str) -> dict[str, EntryPoint]:
    """Return the entry points by name; one of bray's own names is bray's."""
    own = _own(group)
    found = _entry_points(group, _import_folders())
    return {point.name: point for point in found if point.name not in own}


def _import_folders() -> tuple[tuple[str, int], ...]:
    """Return where distributions are looked for, and when something was installed there last."""
    return tuple((folder, _changed_ns(folder)) for folder in sys.path)


def _changed_ns(folder: str) -> int:
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:  # such as a zip file that is not there
        return 0


@functools.lru_cache(maxsize=8)
def _entry_points(group: str, folders: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    """Read every distribution's entry points, which takes 10 ms, once for the same folders."""
    return tuple(entry_points(group=group))


def _only_class(word: str, name: str, module: ModuleType, base: type[Any] | None) -> Any:
    """Return the class of that kind which a module defines."""
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and value.__module__ == module.__name__
        and (base is None or issubclass(value, base))
    ]
    if len(found) != 1:
        raise ConfigError(f"{word}: {name!r}: expected one class of its kind, found {len(found)}")
    return found[0]


def _checked(word: str, name: str, found: Any, base: type[Any] | None) -> Any:
    if not isinstance(found, type) or (base is not None and not issubclass(found, base)):
        wanted = "a class" if base is None else f"a subclass of {base.__module__}.{base.__name__}"
        raise ConfigError(f"{word}: {name!r}: expected {wanted}, got {found!r}")
    return found
