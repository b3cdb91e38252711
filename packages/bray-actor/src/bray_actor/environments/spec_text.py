"""What the descriptions of environments share: their text, and the call that makes one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from bray_actor.environments.error_words import RAISED, error_words
from bray_core.config import from_mapping
from bray_core.errors import BrayError, ConfigError
from bray_core.process.signal_errors import raise_if_of_signal
from bray_core.process.user_modules import find_named_code

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
        ConfigError: it does not take them, needs others or a package that is not installed, or
            raises.
    """
    try:
        return make(**kwargs)
    except BrayError:
        raise
    except ImportError as error:
        raise ConfigError(
            f"environment: {environment} needs a package that is not installed: {error}"
        ) from error
    except RAISED as error:
        raise_if_of_signal(error)
        if isinstance(error, TypeError) and "argument" in str(error):
            if "missing" in str(error):
                words = f"needs more: {error}: write `kwargs.name=value`"
            else:
                words = f"does not take them: {error}"
            raise ConfigError(f"kwargs: {environment} {words}") from error
        raise ConfigError(
            f"environment: {environment} cannot be made: {error_words(error)}"
        ) from error


def wrapped(wrapper: str, environment: Any) -> Any:
    """Return an environment in a wrapper, or in what a function of yours puts around it.

    Args:
        wrapper: `module:Class` or `file.py:Class`.
        environment: What is wrapped.

    Raises:
        ConfigError: there is no such wrapper, or it cannot be called with the environment alone.
    """
    wrap = find_named_code("wrappers", wrapper)
    try:
        return wrap(environment)
    except BrayError:
        raise
    except RAISED as error:
        raise_if_of_signal(error)
        raise ConfigError(
            f"wrappers: {wrapper}: called with the environment it raised {error_words(error)}: "
            "where it takes arguments, name a function of yours that gives them"
        ) from error
