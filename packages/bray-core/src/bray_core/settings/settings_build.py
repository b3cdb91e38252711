"""Building dataclasses from settings, and finding all mistakes in them at once.

A value that is refused is replaced by the field's default, and the rest is checked: so one try
finds mistakes that would otherwise take several.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

from bray_core.errors import ConfigError, Problem, SettingsError
from bray_core.settings.choice import closest
from bray_core.settings.settings_tree import Value, place_of, unwrap, written_name

T = TypeVar("T")

_REFUSED: Any = object()
"""Marker in place of a wrong value."""
_MAX_PROBLEMS = 50
"""Number of problems in one message: looking for the names that were meant takes time."""
_MAX_MEANT = 3
"""Most places that are named for a setting that stands in the wrong one."""
_MAX_VALUE_CHARS = 200
"""Characters of a wrong value in a message."""
_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    Path: "a path",
}
_ANYTHING: tuple[Any, ...] = (Any, object)
LISTS: tuple[Any, ...] = (tuple, list, Sequence)
"""Types that a list is read into."""
MAPPINGS: tuple[Any, ...] = (Mapping, dict)
"""Types that settings of any names are read into."""


def build(root: Value, schema: type[T]) -> T:
    """Return the dataclass `schema` of these settings.

    Raises:
        SettingsError: Holds all problems, those of a file by line.
    """
    builder = SettingsBuilder(_names(schema))
    made = builder.build(root, schema, "")
    builder.raise_problems(root.place)
    return typing.cast(T, made)


def _names(schema: type[Any]) -> dict[str, list[str]]:
    """Return the dotted names, by its own name, of each setting of a dataclass and its parts."""
    hints = typing.get_type_hints(schema)
    found: dict[str, list[str]] = {}
    for field in dataclasses.fields(schema):
        name = written_name(field)
        found.setdefault(name, []).append(name)
        if dataclasses.is_dataclass(hints[field.name]):
            for one in map(written_name, dataclasses.fields(hints[field.name])):
                found.setdefault(one, []).append(f"{name}.{one}")
    return found


def _position(problem: Problem) -> tuple[bool, int, int]:
    found = re.search(r":(\d+):(\d+)$", problem.place)
    return (False, int(found[1]), int(found[2])) if found else (True, 0, 0)


class SettingsBuilder:
    """Builds values and gathers problems; a value that cannot be built becomes `_REFUSED`.

    Args:
        elsewhere: Dotted names, by its own name, of each setting that may be meant in another part.
    """

    def __init__(self, elsewhere: Mapping[str, Sequence[str]] = types.MappingProxyType({})) -> None:
        self.problems: list[Problem] = []
        self._elsewhere = elsewhere
        self._num_more = 0

    def raise_problems(self, place: str) -> None:
        """Raise all problems that were found, those of a file by line.

        Args:
            place: Place of the line that stands for the problems beyond the limit.

        Raises:
            SettingsError: There are problems.
        """
        more = [Problem(place, "", f"and {self._num_more} more")] if self._num_more else []
        if self.problems:
            raise SettingsError([*sorted(self.problems, key=_position), *more])

    def part(self, value: Value, schema: type[T], path: str) -> T | None:
        """Return the dataclass of a part's settings; None where a problem left nothing to make.

        Args:
            value: The settings of the part alone.
            schema: Dataclass that they are read into.
            path: Dotted name of the part, with which the names of its settings begin.
        """
        made = self.build(value, schema, path)
        return None if made is _REFUSED else typing.cast(T, made)

    def refuse(self, place: str, key: str, text: str) -> None:
        """Add a problem that was found elsewhere."""
        self._refuse(place, key, text)

    def _is_full(self) -> bool:
        """Whether further problems are only counted."""
        is_full = len(self.problems) >= _MAX_PROBLEMS
        self._num_more += is_full
        return is_full

    def _refuse(self, place: str, key: str, text: str) -> Any:
        if not self._is_full():
            self.problems.append(Problem(place, key, text))
        return _REFUSED

    def _wrong(self, value: Value, path: str, wanted: str, near: str = "") -> Any:
        got = repr(unwrap(value))
        got = got if len(got) <= _MAX_VALUE_CHARS else f"{got[:_MAX_VALUE_CHARS]}…"
        text = f"{path or 'top level'}: expected {wanted}, got {got}{near}"
        return self._refuse(value.place, path, text)

    def build(self, value: Value, schema: type[Any], path: str) -> Any:
        """Build a dataclass from a mapping; `part:` with nothing below it counts as empty."""
        if value.value is None and path:
            value = Value({}, value.place)
        if not isinstance(value.value, dict):
            near = f": write {{{written_name(dataclasses.fields(schema)[0])}: …}}, by name"
            return self._wrong(value, path, f"settings of {schema.__name__}", near)
        fields = {written_name(f): f for f in dataclasses.fields(schema)}
        hints = typing.get_type_hints(schema)
        prefix = f"{path}." if path else ""
        made: dict[str, Any] = {}
        self._check_types(value, schema, hints, prefix)
        for name, child in value.value.items():
            key = f"{prefix}{name}"
            if name in fields:
                own = fields[name].name
                made[own] = self._convert(child, hints[own], key)
            elif not self._is_full():
                meant = " or ".join(map(repr, self._elsewhere.get(name, ())[:_MAX_MEANT]))
                near = f", did you mean {meant}?" if meant else closest(name, fields)
                known = f"{near}; allowed: {', '.join(sorted(fields))}"
                self._refuse(child.place, key, f"{key}: unknown key{known}")
        for name, field in fields.items():
            if field.name not in made and _required(field):
                made[field.name] = self._missing(value, hints[field.name], f"{prefix}{name}")
        return self._checked(value, schema, made, prefix)

    def _missing(self, value: Value, hint: Any, key: str) -> Any:
        """Refuse that a setting is absent; of a part, each of its settings that has to be there."""
        num_before = len(self.problems)
        if dataclasses.is_dataclass(hint):
            self._convert(Value({}, value.place), hint, key)
        if len(self.problems) == num_before:
            self._refuse(value.place, key, f"{key}: missing")
        return _REFUSED

    def _check_types(
        self, value: Value, schema: type[Any], hints: Mapping[str, Any], prefix: str
    ) -> None:
        """Refuse fields of types that nothing written in YAML becomes."""
        for field in dataclasses.fields(schema):
            if not is_readable(hints[field.name]):
                key = f"{prefix}{written_name(field)}"
                kind = str(hints[field.name]).removeprefix("<class '").removesuffix("'>")
                words = (
                    f"{schema.__name__} declares it as {kind}, which cannot be read from settings"
                )
                self._refuse(
                    value.place,
                    key,
                    f"{key}: {words}: expected bool, int, float, str, Path, Literal, a dataclass, "
                    "or tuples, lists, unions and dicts by name of these",
                )

    def _checked(self, value: Value, schema: type[Any], made: dict[str, Any], prefix: str) -> Any:
        """Make the dataclass; fields that it refuses get their defaults until it takes the rest."""
        kept = {name: child for name, child in made.items() if child is not _REFUSED}
        if any(_required(f) and f.name not in kept for f in dataclasses.fields(schema)):
            return _REFUSED
        while True:
            try:
                return schema(**kept)
            except ConfigError as error:  # from __post_init__: add where the field was written
                text = str(error)
                name = re.split(r"[^\w.]", text, maxsplit=1)[0]
                if not self._is_of_another(f"{prefix}{name}", text.removeprefix(name)):
                    self._refuse(place_of(value, text), f"{prefix}{name}", f"{prefix}{text}")
                if not _set_aside(schema, kept, name.split(".")):
                    return _REFUSED

    def _is_of_another(self, key: str, words: str) -> bool:
        """Return whether a value was refused only because of the default of a wrong field."""
        keys = {problem.key for problem in self.problems}
        return key in keys or any(
            re.search(rf"\b{re.escape(other.rpartition('.')[2])}\b", words)
            for other in keys
            if other
        )

    def _convert(self, value: Value, hint: Any, path: str) -> Any:
        if dataclasses.is_dataclass(hint):
            return self.build(value, typing.cast(type[Any], hint), path)
        if hint in _ANYTHING:
            return unwrap(value)
        origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
        if origin is Literal:
            return self._choice(value, arguments, path)
        if origin in (Union, types.UnionType):
            return self._one_of(value, arguments, path)
        if origin in LISTS:
            made = self._tuple(value, item_types(origin, arguments), path)
            return list(made) if origin is list and made is not _REFUSED else made
        if origin in MAPPINGS:
            return self._mapping(value, arguments[1] if arguments else Any, path)
        return self._scalar(value, hint, path)

    def _one_of(self, value: Value, hints: tuple[Any, ...], path: str) -> Any:
        """Read a value as the first type of a union that takes it."""
        if value.value is None and type(None) in hints:
            return None
        kinds = _kinds(value, hints)
        if len(kinds) > 1:
            for kind in kinds:
                tried = SettingsBuilder()
                made = tried._convert(value, kind, path)
                if not tried.problems:
                    return made
            if not isinstance(value.value, dict):
                return self._wrong(value, path, " or ".join(map(_words, kinds)))
        if kinds[0] in _WORDS:
            return self._scalar(value, kinds[0], path, _or_settings(hints))
        return self._convert(value, kinds[0], path)

    def _choice(self, value: Value, choices: Sequence[Any], path: str) -> Any:
        if value.value in choices and not isinstance(value.value, bool):
            return value.value
        got = value.value if isinstance(value.value, str | int | float) else ""
        near = closest(str(got), [str(choice) for choice in choices])
        return self._wrong(value, path, "one of " + ", ".join(map(repr, choices)), near)

    def _tuple(self, value: Value, items: tuple[Any, ...], path: str) -> Any:
        if not isinstance(value.value, list):
            text = value.value.strip("[]") if isinstance(value.value, str) else ""
            near = f": write [{value.value}]" if isinstance(value.value, int | float) else ""
            is_shown = "," in text and not {*"[]"} & {*text}
            wanted = f"a list such as [{text}]" if is_shown else "a list"
            return self._wrong(value, path, wanted, near)
        if items[-1] is Ellipsis:
            items = items[:1] * len(value.value)
        if len(items) != len(value.value):
            return self._wrong(value, path, f"a list of {len(items)}")
        pairs = enumerate(zip(value.value, items, strict=True))
        made = tuple(self._convert(v, item, f"{path}[{i}]") for i, (v, item) in pairs)
        return _REFUSED if any(one is _REFUSED for one in made) else made

    def _mapping(self, value: Value, item: Any, path: str) -> Any:
        """Return settings of any names as a dict; nothing below the key counts as none."""
        if value.value is None:
            return {}
        if not isinstance(value.value, dict):
            return self._wrong(value, path, "settings, such as {name: value}")
        made = {k: self._convert(v, item, f"{path}.{k}") for k, v in value.value.items()}
        return _REFUSED if any(one is _REFUSED for one in made.values()) else made

    def _scalar(self, value: Value, hint: Any, path: str, or_else: str = "") -> Any:
        got = value.value
        if hint is bool and isinstance(got, bool):
            return got
        if hint is int and isinstance(got, int) and not isinstance(got, bool):
            return got
        if hint is float and not isinstance(got, bool):
            try:
                number = float(got)  # also '1e-3', which YAML 1.1 reads as a string
            except (TypeError, ValueError, OverflowError):
                number = math.nan
            if not math.isnan(number) and not _overflows(got, number):
                return number
        if hint is str and isinstance(got, str):
            return got
        if hint is Path and isinstance(got, str | Path):
            return Path(got)
        return self._wrong(value, path, _WORDS.get(hint, str(hint)) + or_else)


def _kinds(value: Value, hints: tuple[Any, ...]) -> list[Any]:
    """Return the types of a union that a value may be read as: those of its shape, or the first."""
    kinds = [hint for hint in hints if hint is not type(None)]
    is_mapping, is_list = isinstance(value.value, dict), isinstance(value.value, list)
    others = [hint for hint in kinds if _takes_settings(hint) == is_mapping]
    fitting = [hint for hint in others if _takes_list(hint) == is_list]
    return fitting or others[:1] or kinds[:1]


def _words(hint: Any) -> str:
    """Return in words what a type takes."""
    if typing.get_origin(hint) is Literal:
        return " or ".join(map(repr, typing.get_args(hint)))
    return _WORDS.get(hint, "a list" if _takes_list(hint) else str(hint))


def item_types(origin: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the types of a list's items, as those of a tuple are written."""
    if origin is tuple and arguments:
        return arguments
    return (*(arguments or (Any,)), Ellipsis)


def is_readable(hint: Any) -> bool:
    """Return whether a field of this type can be read from settings."""
    if hint in _ANYTHING or hint in _WORDS or dataclasses.is_dataclass(hint):
        return True
    origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin in MAPPINGS and arguments:
        return arguments[0] in (str, *_ANYTHING) and is_readable(arguments[1])
    if origin is Literal:
        return all(isinstance(choice, str | int | float) for choice in arguments)
    if origin in (*LISTS, *MAPPINGS, Union, types.UnionType):
        return all(one in (Ellipsis, type(None)) or is_readable(one) for one in arguments)
    return False


def _or_settings(hints: tuple[Any, ...]) -> str:
    """Return the words for what else a union takes: ` or {start, end, frames, shape}`."""
    for hint in hints:
        if dataclasses.is_dataclass(hint):
            return f" or {{{', '.join(map(written_name, dataclasses.fields(hint)))}}}"
    return ""


def _takes_settings(hint: Any) -> bool:
    return dataclasses.is_dataclass(hint) or (typing.get_origin(hint) or hint) in MAPPINGS


def _takes_list(hint: Any) -> bool:
    return (typing.get_origin(hint) or hint) in LISTS


def _overflows(text: Any, number: float) -> bool:
    """Return whether digits such as `1e999` became infinity, which is written `.inf`."""
    return math.isinf(number) and isinstance(text, str) and any(map(str.isdigit, text))


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _set_aside(schema: type[Any], made: dict[str, Any], names: Sequence[str]) -> bool:
    """Give a field its default, by its dotted name; return whether that changed anything."""
    first, *rest = names
    field = next((f for f in dataclasses.fields(schema) if f.name == first), None)
    if field is None or first not in made:
        return False
    if not rest:
        del made[first]
        return not _required(field)
    inner = made[first]
    if not dataclasses.is_dataclass(inner) or isinstance(inner, type):
        return False
    below = {f.name: getattr(inner, f.name) for f in dataclasses.fields(inner)}
    known = {f.name: f for f in dataclasses.fields(inner)}.get(rest[0])
    if known is None or below[rest[0]] == known.default:
        return False
    try:
        if not _set_aside(type(inner), below, rest):
            return False
        made[first] = type(inner)(**below)
    except ConfigError:
        return False
    return True
