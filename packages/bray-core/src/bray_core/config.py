"""Configuration: YAML into checked dataclasses, with errors that name file, line, column and key.

YAML exists only at the command line: `load_yaml` reads a file, applies overrides such as
`BRAY_TRAINER__LEARNING_RATE` of the environment and `trainer.learning_rate=3e-4` of the command
line, and builds the (nested, frozen) dataclass that the code works with.
Types understood: bool, int, float, str, Path, Literal, dataclasses, Any, and of these tuples, lists
and sequences, mappings and dicts by string, and unions, whose first type that takes a value has it.
Fields of other types are refused when the class is first read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bray_core.errors import ConfigError
from bray_core.settings.settings_build import build
from bray_core.settings.settings_load import COMMAND_LINE, load_tree
from bray_core.settings.settings_tree import Value, override, parse, read, to_plain

__all__ = ["from_mapping", "load_text", "load_yaml", "to_mapping", "with_overrides"]

T = TypeVar("T")


def load_yaml(
    path: Path,
    schema: type[T] | Callable[[Mapping[str, Any]], type[T]],
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    renamed: Mapping[str, str] | None = None,
) -> T:
    """Read a YAML file into the dataclass `schema`.

    Args:
        path: The file.
        schema: Dataclass to build, or a function that returns one for the file's settings. Its
            `__post_init__` raises ConfigError for values out of range, with a message that begins
            with the dotted name of the field.
        overrides: Settings `key.path=value`, the value in YAML syntax; they win over all else.
        environment: Environment variables; `BRAY_KEY__PATH` sets `key.path`.
        renamed: Old names of keys of the top level, with those that they are read as.

    Raises:
        SettingsError: One line per problem: `file:line:column: key.path: expected …, got …`, with
            the closest known name.
        ConfigError: There is no such file, or an override has another form.
    """
    return load_tree(read(path), schema, overrides, environment, renamed)


def load_text(
    text: str,
    source: str,
    schema: type[T] | Callable[[Mapping[str, Any]], type[T]],
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    renamed: Mapping[str, str] | None = None,
) -> T:
    """Read the YAML text of `source` into the dataclass `schema`; else as `load_yaml`."""
    return load_tree(parse(text, source), schema, overrides, environment, renamed)


def from_mapping(values: Mapping[str, Any], schema: type[T], source: str = "config") -> T:
    """Build the dataclass `schema` from plain Python values; errors as in `load_yaml`."""
    return build(Value.of_plain(values, source), schema)


def with_overrides(config: T, overrides: Sequence[str]) -> T:
    """Return a dataclass with some settings changed, as `gamma=0.9`; errors as in `load_yaml`."""
    root = Value.of_plain(to_mapping(config), COMMAND_LINE)
    for written in overrides:
        override(root, written, COMMAND_LINE)
    return build(root, type(config))


def to_mapping(config: Any) -> dict[str, Any]:
    """Return a dataclass as plain values that YAML and JSON can hold."""
    plain = to_plain(config)
    if not isinstance(plain, dict):
        raise ConfigError(f"config: expected a dataclass or mapping, got {type(config).__name__}")
    return plain
