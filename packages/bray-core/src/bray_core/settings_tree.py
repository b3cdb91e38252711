"""Settings as they were written, each with its place: `file:line:column`, or the command line."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from bray_core.errors import ConfigError, Problem, SettingsError


@dataclasses.dataclass(slots=True)
class Value:
    """A value and the place that it came from, `file:line:column`."""

    value: Any
    place: str

    @classmethod
    def of_node(cls, node: yaml.Node, file: str) -> Value:
        """Return what a node of a file holds."""
        place = _mark(file, node.start_mark)
        if isinstance(node, yaml.MappingNode):
            found: dict[str, Value] = {}
            for key_node, child in node.value:
                key_place = _mark(file, key_node.start_mark)
                key = str(key_node.value)
                if key in found:
                    raise _wrong(key_place, f"{key}: given twice")
                value = cls.of_node(child, file)
                found[key] = cls(value.value, key_place)
            return cls(found, place)
        if isinstance(node, yaml.SequenceNode):
            return cls([cls.of_node(child, file) for child in node.value], place)
        return cls(_scalar(node), place)

    @classmethod
    def of_plain(cls, value: Any, place: str) -> Value:
        """Return plain Python values, all of one place."""
        if isinstance(value, Mapping):
            return cls({str(k): cls.of_plain(v, place) for k, v in value.items()}, place)
        if isinstance(value, list | tuple):
            return cls([cls.of_plain(child, place) for child in value], place)
        return cls(value, place)


def read(path: Path) -> Value:
    """Read a YAML file.

    Raises:
        ConfigError: it is none; names where.
    """
    try:
        return parse(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not text in UTF-8: {error.reason}") from error


def parse(text: str, file: str) -> Value:
    """Read the YAML text of a file.

    Raises:
        SettingsError: it is none; names where.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        return Value.of_node(node, file) if node else Value({}, f"{file}:1:1")
    except yaml.MarkedYAMLError as error:
        place = _mark(file, error.problem_mark) if error.problem_mark else f"{file}:1:1"
        raise _wrong(place, f"not valid YAML: {error.problem}") from error
    except yaml.reader.ReaderError as error:
        raise _wrong(file, f"not text in UTF-8: {error.reason}") from error
    except RecursionError:
        raise _wrong(file, "nested too deeply, or an anchor that contains itself") from None


def _wrong(place: str, text: str) -> SettingsError:
    return SettingsError([Problem(place, "", text)])


def _mark(file: str, mark: Any) -> str:
    return f"{file}:{mark.line + 1}:{mark.column + 1}"


def _scalar(node: yaml.Node) -> Any:
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node)
    except yaml.YAMLError:
        return node.value
    finally:
        loader.dispose()


def override(root: Value, written: str, place: str) -> None:
    """Set `key.path=value`, the value in YAML syntax.

    Raises:
        ConfigError: it is not of that form, or there are no settings at the path.
    """
    key, equals, text = written.partition("=")
    if not equals or not key:
        raise ConfigError(f"{place}: expected key=value, got {written!r}")
    try:
        plain = yaml.safe_load(text)
    except yaml.YAMLError:
        plain = text
    *parents, last = key.split(".")
    at = root
    for parent in parents:
        if not isinstance(at.value, dict):
            break
        below = at.value.setdefault(parent, Value({}, place))
        if below.value is None:  # `buffer:` with nothing below it
            below.value = {}
        at = below
    if not isinstance(at.value, dict):
        raise ConfigError(f"{place}: {key}: {'.'.join(parents)} has no settings below it")
    at.value[last] = Value.of_plain(plain, place)


def place_of(value: Value, message: str) -> str:
    """Return where the field was written with whose dotted name a message begins."""
    for name in re.split(r"[^\w.]", message, maxsplit=1)[0].split("."):
        if not isinstance(value.value, dict) or name not in value.value:
            break
        value = value.value[name]
    return value.place


def unwrap(value: Value) -> Any:
    """Return the plain Python values."""
    if isinstance(value.value, dict):
        return {key: unwrap(child) for key, child in value.value.items()}
    if isinstance(value.value, list):
        return [unwrap(child) for child in value.value]
    return value.value
