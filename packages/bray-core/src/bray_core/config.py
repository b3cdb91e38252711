"""Configuration: YAML into checked dataclasses, with errors that name file, line and key.

YAML exists only at the command line: `load_yaml` reads a file, applies overrides such as
`trainer.learning_rate=3e-4`, and builds the (nested, frozen) dataclass that the code works with.
Types understood: bool, int, float, str, Path, Literal, Optional, tuple[X, ...], dataclasses.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

import yaml

from bray_core.errors import ConfigError

T = TypeVar("T")

COMMAND_LINE = "command line"


def closest(name: str, allowed: Iterable[str]) -> str:
    """Return `, did you mean 'x'?` for the allowed name nearest to `name`, or nothing."""
    near = difflib.get_close_matches(name, list(allowed), n=1, cutoff=0.5)
    return f", did you mean {near[0]!r}?" if near else ""


def load_yaml(path: Path, schema: type[T], overrides: Sequence[str] = ()) -> T:
    """Read a YAML file into the dataclass `schema`.

    Args:
        path: the file.
        schema: a dataclass whose `__post_init__` raises ConfigError for values out of range, with
            a message that begins with the field's name.
        overrides: `key.path=value`, the value in YAML syntax.

    Raises:
        ConfigError: `file:line: key.path: expected …, got …`, with the closest known name.
    """
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        root = _Value.of_node(node, str(path)) if node else _Value({}, f"{path}:1")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{path}:{line}: not valid YAML: {error.problem}") from error
    except (yaml.reader.ReaderError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not text in UTF-8: {error.reason}") from error
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply, or an anchor that contains itself") from None
    for override in overrides:
        _override(root, override)
    return _build(root, schema, "")


def from_mapping(values: Mapping[str, Any], schema: type[T], source: str = "config") -> T:
    """Build the dataclass `schema` from plain Python values; errors as in `load_yaml`."""
    return _build(_Value.of_plain(values, source), schema, "")


def with_overrides(config: T, overrides: Sequence[str]) -> T:
    """Return a dataclass with some settings changed, as `gamma=0.9`; errors as in `load_yaml`."""
    root = _Value.of_plain(to_mapping(config), COMMAND_LINE)
    for override in overrides:
        _override(root, override)
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


@dataclasses.dataclass(slots=True)
class _Value:
    """A value and the place that it came from, `file:line`."""

    value: Any
    place: str

    @classmethod
    def of_node(cls, node: yaml.Node, file: str) -> _Value:
        place = f"{file}:{node.start_mark.line + 1}"
        if isinstance(node, yaml.MappingNode):
            found: dict[str, _Value] = {}
            for key_node, child in node.value:
                key_place = f"{file}:{key_node.start_mark.line + 1}"
                key = str(key_node.value)
                if key in found:
                    raise ConfigError(f"{key_place}: {key}: given twice")
                value = cls.of_node(child, file)
                found[key] = cls(value.value, key_place)
            return cls(found, place)
        if isinstance(node, yaml.SequenceNode):
            return cls([cls.of_node(child, file) for child in node.value], place)
        return cls(_scalar(node), place)

    @classmethod
    def of_plain(cls, value: Any, place: str) -> _Value:
        if isinstance(value, Mapping):
            return cls({str(k): cls.of_plain(v, place) for k, v in value.items()}, place)
        if isinstance(value, list | tuple):
            return cls([cls.of_plain(child, place) for child in value], place)
        return cls(value, place)


def _scalar(node: yaml.Node) -> Any:
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node)
    except yaml.YAMLError:
        return node.value
    finally:
        loader.dispose()


def _override(root: _Value, override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"{COMMAND_LINE}: expected key=value, got {override!r}")
    try:
        plain = yaml.safe_load(text)
    except yaml.YAMLError:
        plain = text
    *parents, last = key.split(".")
    at = root
    for parent in parents:
        if not isinstance(at.value, dict):
            break
        at = at.value.setdefault(parent, _Value({}, COMMAND_LINE))
    if not isinstance(at.value, dict):
        raise ConfigError(f"{COMMAND_LINE}: {key}: {'.'.join(parents)} has no settings below it")
    at.value[last] = _Value.of_plain(plain, COMMAND_LINE)


def _build(value: _Value, schema: type[T], path: str) -> T:
    """Build a dataclass from the mapping in `value`."""
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
        field = re.split(r"\W", str(error), maxsplit=1)[0]
        place = value.value[field].place if field in value.value else value.place
        prefix = f"{path}." if path else ""
        raise ConfigError(f"{place}: {prefix}{error}") from error


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _convert(value: _Value, hint: Any, path: str) -> Any:
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


def _convert_optional(value: _Value, hints: tuple[Any, ...], path: str) -> Any:
    if value.value is None and type(None) in hints:
        return None
    (hint,) = (h for h in hints if h is not type(None))
    return _convert(value, hint, path)


def _convert_tuple(value: _Value, items: tuple[Any, ...], path: str) -> tuple[Any, ...]:
    if not isinstance(value.value, list):
        raise _wrong(value, path, "a list")
    if items[-1] is Ellipsis:
        items = items[:1] * len(value.value)
    if len(items) != len(value.value):
        raise _wrong(value, path, f"a list of {len(items)}")
    pairs = zip(value.value, items, strict=True)
    return tuple(_convert(v, item, f"{path}[{i}]") for i, (v, item) in enumerate(pairs))


def _convert_scalar(value: _Value, hint: Any, path: str) -> Any:
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


def _wrong(value: _Value, path: str, wanted: str) -> ConfigError:
    got = _unwrap(value)
    return ConfigError(f"{value.place}: {path or 'top level'}: expected {wanted}, got {got!r}")


def _unwrap(value: _Value) -> Any:
    if isinstance(value.value, dict):
        return {key: _unwrap(child) for key, child in value.value.items()}
    if isinstance(value.value, list):
        return [_unwrap(child) for child in value.value]
    return value.value
