"""What the descriptions of environments share: their text, and the call that makes one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from bray_core.config import from_mapping
from bray_core.errors import ConfigError

S = TypeVar("S")


def short_name(environment: str) -> str:
    """Return the name of an environment; of `file.py:Class`, the file's without its folders."""
    where, colon, name = environment.rpartition(":")
    return f"{Path(where).name}{colon}{name}"


def spec_to_json(values: Mapping[str, Any]) -> str:
    """Return settings of a description as JSON.

    Raises:
        ConfigError: the kwargs hold something that JSON cannot.
    """
    try:
        return json.dumps(values)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"kwargs: expected numbers, words, lists and settings, got {values.get('kwargs')!r} "
            f"({error}): let a function of yours make the environment (module:function)"
        ) from error


def spec_from_json(text: str, spec: type[S], where: str) -> S:
    """Return the description of a class that `spec_to_json` wrote.

    Raises:
        ConfigError: it is no such text; begins with `where` it stood.
    """
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}: expected JSON, got {text[:200]!r}: {error}") from error
    return from_mapping(values, spec, where)


def made_with(make: Callable[..., Any], environment: str, kwargs: Mapping[str, Any]) -> Any:
    """Return what a class or function makes with the arguments of a description.

    Raises:
        ConfigError: it does not take them, or needs a package that is not installed.
    """
    try:
        return make(**kwargs)
    except ImportError as error:
        raise ConfigError(
            f"environment: {environment} needs a package that is not installed: {error}"
        ) from error
    except TypeError as error:  # mostly an argument that it does not take
        if not kwargs or "argument" not in str(error):
            raise
        raise ConfigError(f"kwargs: {environment} does not take them: {error}") from error
