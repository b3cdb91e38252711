"""Settings with the place of each: `file:line:column`, or the command line."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from bray_core.errors import ConfigError, Problem, SettingsError
from bray_core.files.regular_file import read_regular
from bray_core.settings.yaml_nodes import MAX_BYTES, MAX_DEPTH, compose, scalar

_MAX_REPEATED = 10_000
"""Number of values that aliases may stand for, beyond the length of the text."""

_MERGE = "tag:yaml.org,2002:merge"
"""Tag of the key `<<`, unless it is quoted."""
SHARED = "x-"
"""First letters of keys of the top level that hold what aliases stand for, and set nothing."""


@dataclasses.dataclass(slots=True)
class Value:
    """A value and the place that it came from, `file:line:column`."""

    value: Any
    place: str

    @classmethod
    def of_plain(cls, value: Any, place: str) -> Value:
        """Return plain Python values as settings that all have one place."""
        if isinstance(value, Mapping):
            return cls({str(k): cls.of_plain(v, place) for k, v in value.items()}, place)
        if isinstance(value, list | tuple):
            return cls([cls.of_plain(child, place) for child in value], place)
        return cls(value, place)

    def plain(self) -> Any:
        """Return the settings as dicts, lists and scalars, without their places."""
        if isinstance(self.value, dict):
            return {name: child.plain() for name, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value

    def copy(self) -> Value:
        """Return the same settings, apart: what is written into the one is not in the other."""
        value = self.value
        if isinstance(value, dict):
            value = {name: child.copy() for name, child in value.items()}
        elif isinstance(value, list):
            value = [child.copy() for child in value]
        return Value(value, self.place)


def read(path: Path) -> Value:
    """Read a YAML file.

    Raises:
        ConfigError: The file is no YAML; names the place.
    """
    try:
        return parse(read_regular(path, MAX_BYTES).decode(), str(path))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not text in UTF-8: {error.reason}") from error


def parse(text: str, file: str, *, takes_aliases: bool = True) -> Value:
    """Read the YAML text of a file.

    Args:
        text: Text, at most `MAX_BYTES` long.
        file: Name of the file, for places.
        takes_aliases: Whether `*name` may stand for what `&name` marks.

    Raises:
        SettingsError: The text is no YAML, or its aliases stand for too much; names the place.
    """
    try:
        node = compose(text, takes_aliases=takes_aliases)
    except yaml.MarkedYAMLError as error:
        place = _mark(file, error.problem_mark) if error.problem_mark else f"{file}:1:1"
        raise _wrong(place, f"not valid YAML: {error.problem}") from error
    except yaml.reader.ReaderError as error:
        raise _wrong(file, f"not text in UTF-8: {error.reason}") from error
    if node is None:
        return Value({}, f"{file}:1:1")
    root = _Reader(file, len(text)).value(node)
    if isinstance(root.value, dict):
        root.value = {k: child for k, child in root.value.items() if not k.startswith(SHARED)}
    return root


class _Reader:
    """Makes values of YAML nodes; an alias is copied wherever it is written."""

    def __init__(self, file: str, num_written: int) -> None:
        self._file = file
        self._left = num_written + _MAX_REPEATED

    def value(self, node: yaml.Node, depth: int = 0) -> Value:
        """Return the value of a node with everything below it."""
        place = _mark(self._file, node.start_mark)
        self._left -= 1
        if self._left < 0:
            raise _wrong(place, f"aliases stand for more than {_MAX_REPEATED} values: write fewer")
        if depth > MAX_DEPTH:
            raise _wrong(place, "nested too deeply, or an anchor that contains itself")
        if isinstance(node, yaml.MappingNode):
            return Value(self._settings(node, depth), place)
        if isinstance(node, yaml.SequenceNode):
            return Value([self.value(child, depth + 1) for child in node.value], place)
        return Value(scalar(node), place)

    def _settings(self, node: yaml.MappingNode, depth: int) -> dict[str, Value]:
        found: dict[str, Value] = {}
        merged: dict[str, Value] | None = None
        for key_node, child in node.value:
            place = _mark(self._file, key_node.start_mark)
            if not isinstance(key_node, yaml.ScalarNode):
                raise _wrong(place, "expected a word before the colon, got a list or settings")
            key = key_node.value
            if key in found or (merged is not None and key_node.tag == _MERGE):
                raise _wrong(place, f"{key}: given twice")
            value = self.value(child, depth + 1)
            if key_node.tag == _MERGE:
                merged = _merged(value, place)
            else:
                found[key] = Value(value.value, place)
        return found if merged is None else {**merged, **found}


def _merged(value: Value, place: str) -> dict[str, Value]:
    """Return the settings that `<<:` takes over; of several, the first that has a key counts."""
    parts = value.value if isinstance(value.value, list) else [value]
    found: dict[str, Value] = {}
    for part in reversed(parts):
        if not isinstance(part.value, dict):
            text = f"<<: expected settings, such as *name, or a list of them, got {unwrap(part)!r}"
            raise _wrong(place, text)
        found |= part.value
    return found


def _wrong(place: str, text: str) -> SettingsError:
    return SettingsError([Problem(place, "", text)])


def _mark(file: str, mark: Any) -> str:
    return f"{file}:{mark.line + 1}:{mark.column + 1}"


def override(root: Value, written: str, place: str) -> None:
    """Set `key.path=value`, the value in YAML syntax.

    Raises:
        ConfigError: It has another form, or there are no settings at the path.
    """
    key, equals, text = written.partition("=")
    if not equals or not key:
        raise ConfigError(f"{place}: expected key=value, got {written!r}")
    *parents, last = key.split(".")
    if len(parents) > MAX_DEPTH:
        raise ConfigError(f"{place}: {key[:100]}: nested too deeply, {MAX_DEPTH} levels at most")
    at = root
    above: list[str] = []
    for parent in parents:
        if not isinstance(at.value, dict):
            break
        below = at.value.setdefault(parent, Value({}, place))
        if below.value is None:  # `buffer:` with nothing below it
            below.value = {}
        at = below
        above.append(parent)
    if not isinstance(at.value, dict):
        where = ".".join(above) or "top level"
        raise ConfigError(
            f"{place}: {key}: {where} has no settings below it: expected them by name, got "
            f"{unwrap(at)!r:.100} ({at.place})"
        )
    at.value[last] = _overriding(text, place)


def _overriding(text: str, place: str) -> Value:
    """Return the value of an override; text that is no YAML, such as `[x`, is a string."""
    try:
        node = compose(text)
    except yaml.YAMLError:
        return Value(text, place)
    if node is None:
        return Value(None, place)
    return Value.of_plain(unwrap(_Reader(place, len(text)).value(node)), place)


def place_of(value: Value, message: str) -> str:
    """Return the place of the field whose dotted name begins a message."""
    for name in re.split(r"[^\w.]", message, maxsplit=1)[0].split("."):
        if not isinstance(value.value, dict) or name not in value.value:
            break
        value = value.value[name]
    return value.place


def unwrap(value: Value) -> Any:
    """Return settings as plain Python values."""
    if isinstance(value.value, dict):
        return {key: unwrap(child) for key, child in value.value.items()}
    if isinstance(value.value, list):
        return [unwrap(child) for child in value.value]
    return value.value


def written_name(field: dataclasses.Field[Any]) -> str:
    """Return the key of a field: `metadata["key"]`, such as `from`, where that is no name."""
    key: str = field.metadata.get("key", field.name)
    return key


def to_plain(value: Any) -> Any:
    """Return a dataclass, or a value of one, in types that YAML and JSON can hold."""
    if dataclasses.is_dataclass(value):
        return {
            written_name(f): to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): to_plain(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(child) for child in value]
    return str(value) if isinstance(value, Path) else value
