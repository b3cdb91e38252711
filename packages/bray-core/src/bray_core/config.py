"""Configuration: YAML into checked dataclasses, with errors that name file, line, column and key.

YAML exists only at the command line: `load_yaml` reads a file, applies overrides such as
`BRAY_TRAINER__LEARNING_RATE` of the environment and `trainer.learning_rate=3e-4` of the command
line, and builds the (nested, frozen) dataclass that the code works with.
Types understood: bool, int, float, str, Path, Literal, Optional, tuple[X, ...], dataclasses.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

from bray_core.errors import ConfigError
from bray_core.settings_tree import Value, override, place_of, read, unwrap

T = TypeVar("T")

COMMAND_LINE = "command line"
PREFIX = "BRAY_"
"""Of environment variables that set something."""


def closest(name: str, allowed: Iterable[str]) -> str:
    """Return `, did you mean 'x'?` for the allowed name nearest to `name`, or nothing."""
    near = difflib.get_close_matches(name, list(allowed), n=1, cutoff=0.5)
    return f", did you mean {near[0]!r}?" if near else ""


def load_yaml(
    path: Path,
    schema: type[T] | Callable[[Mapping[str, Any]], type[T]],
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> T:
    """Read a YAML file into the dataclass `schema`.

    Args:
        path: the file.
        schema: a dataclass whose `__post_init__` raises ConfigError for values out of range, with
            a message that begins with the field's name, dotted where it is of a part; or what
            returns one for the file's settings.
        overrides: `key.path=value`, the value in YAML syntax; they win over all else.
        environment: variables, of which those such as `BRAY_KEY__PATH` set `key.path`.

    Raises:
        ConfigError: `file:line:column: key.path: expected …, got …`, with the closest known name.
    """
    root = read(path)
    for name, text in (environment or {}).items():
        if name.startswith(PREFIX) and "__" in name:
            key = name.removeprefix(PREFIX).lower().replace("__", ".")
            override(root, f"{key}={text}", f"environment {name}")
    for written in overrides:
        override(root, written, COMMAND_LINE)
    chosen = schema if isinstance(schema, type) else _chosen(root, schema)
    return _build(root, chosen, "")


def _chosen(root: Value, choose: Callable[[Mapping[str, Any]], type[T]]) -> type[T]:
    if not isinstance(root.value, dict):
        raise _wrong(root, "", "settings")
    try:
        return choose({name: unwrap(child) for name, child in root.value.items()})
    except ConfigError as error:
        raise ConfigError(f"{place_of(root, str(error))}: {error}") from error


def from_mapping(values: Mapping[str, Any], schema: type[T], source: str = "config") -> T:
    """Build the dataclass `schema` from plain Python values; errors as in `load_yaml`."""
    return _build(Value.of_plain(values, source), schema, "")


def with_overrides(config: T, overrides: Sequence[str]) -> T:
    """Return a dataclass with some settings changed, as `gamma=0.9`; errors as in `load_yaml`."""
    root = Value.of_plain(to_mapping(config), COMMAND_LINE)
    for written in overrides:
        override(root, written, COMMAND_LINE)
    return _build(root, type(config), "")


def to_mapping(config: Any) -> dict[str, Any]:
    """Return a dataclass as plain values that YAML and JSON can hold."""
    plain = _plain(config)
    if not isinstance(plain, dict):
        raise ConfigError(f"config: expected a dataclass or mapping, got {type(config).__name__}")
    return plain


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(child) for child in value]
    return str(value) if isinstance(value, Path) else value


def _build(value: Value, schema: type[T], path: str) -> T:
    """Build a dataclass from the mapping in `value`; `part:` with nothing below it is empty."""
    if value.value is None and path:
        value = Value({}, value.place)
    if not isinstance(value.value, dict):
        raise _wrong(value, path, f"settings of {schema.__name__}")
    fields = {f.name: f for f in dataclasses.fields(schema)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(schema)
    made: dict[str, Any] = {}
    for name, child in value.value.items():
        child_path = f"{path}.{name}" if path else name
        if name not in fields:
            raise ConfigError(
                f"{child.place}: {child_path}: unknown key{closest(name, fields)}; "
                f"allowed: {', '.join(sorted(fields))}"
            )
        made[name] = _convert(child, hints[name], child_path)
    missing = [n for n, f in fields.items() if n not in made and _required(f)]
    if missing:
        raise ConfigError(f"{value.place}: {path or schema.__name__}: missing {', '.join(missing)}")
    try:
        return schema(**made)
    except ConfigError as error:  # from __post_init__: add where the field was written
        prefix = f"{path}." if path else ""
        raise ConfigError(f"{place_of(value, str(error))}: {prefix}{error}") from error


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _convert(value: Value, hint: Any, path: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _build(value, typing.cast(type[Any], hint), path)
    origin = typing.get_origin(hint)
    if origin is Literal:
        choices = typing.get_args(hint)
        if value.value in choices and not isinstance(value.value, bool):
            return value.value
        near = closest(str(value.value), [str(choice) for choice in choices])
        wanted = "one of " + ", ".join(repr(choice) for choice in choices)
        raise ConfigError(f"{value.place}: {path}: expected {wanted}, got {value.value!r}{near}")
    if origin in (Union, types.UnionType):
        return _convert_optional(value, typing.get_args(hint), path)
    if origin is tuple:
        return _convert_tuple(value, typing.get_args(hint), path)
    return _convert_scalar(value, hint, path)


def _convert_optional(value: Value, hints: tuple[Any, ...], path: str) -> Any:
    if value.value is None and type(None) in hints:
        return None
    (hint,) = (h for h in hints if h is not type(None))
    return _convert(value, hint, path)


def _convert_tuple(value: Value, items: tuple[Any, ...], path: str) -> tuple[Any, ...]:
    if not isinstance(value.value, list):
        raise _wrong(value, path, "a list")
    if items[-1] is Ellipsis:
        items = items[:1] * len(value.value)
    if len(items) != len(value.value):
        raise _wrong(value, path, f"a list of {len(items)}")
    pairs = zip(value.value, items, strict=True)
    return tuple(_convert(v, item, f"{path}[{i}]") for i, (v, item) in enumerate(pairs))


def _convert_scalar(value: Value, hint: Any, path: str) -> Any:
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
        if not math.isnan(number):
            return number
    if hint is str and isinstance(got, str):
        return got
    if hint is Path and isinstance(got, str | Path):
        return Path(got)
    raise _wrong(value, path, _WORDS.get(hint, str(hint)))


_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    Path: "a path",
}


def _wrong(value: Value, path: str, wanted: str) -> ConfigError:
    got = unwrap(value)
    return ConfigError(f"{value.place}: {path or 'top level'}: expected {wanted}, got {got!r}")
