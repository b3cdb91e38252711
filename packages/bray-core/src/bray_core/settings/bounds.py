"""Bounds of a dataclass's numbers, found by asking its `__post_init__`."""

from __future__ import annotations

import re
import typing
from collections.abc import Callable
from typing import Any

from bray_core.errors import ConfigError

_NEAR = 1e-9
_LEAST = (0, 1, 2)
_MOST = (1, 65535)


def bounds(schema: type[Any]) -> dict[str, dict[str, float]]:
    """Return `minimum`, `exclusiveMinimum`, `maximum` of each number, as JSON Schema names them.

    Those that settings have are found: from 0, 1 or 2, above 0, up to 1, up to a port's number.

    Args:
        schema: Dataclass whose fields have defaults.
    """
    hints = typing.get_type_hints(schema)
    found: dict[str, dict[str, float]] = {}
    for name, hint in hints.items():
        if hint in (int, float):

            def takes(value: float, name: str = name) -> bool:
                return _takes(schema, name, value)

            found[name] = (_of_whole if hint is int else _of_real)(takes)
    return found


def _takes(schema: type[Any], name: str, value: float) -> bool:
    """Whether a value is taken where all else has its default; another field's fault is not its."""
    try:
        schema(**{name: value})
    except ConfigError as error:
        return re.match(rf"{name}\b", str(error)) is None
    return True


def _of_whole(takes: Callable[[float], bool]) -> dict[str, float]:
    found: dict[str, float] = {}
    least = next((least for least in _LEAST if takes(least)), None)
    if least is not None and not takes(least - 1):
        found["minimum"] = least
    return found | _most(takes, 1)


def _of_real(takes: Callable[[float], bool]) -> dict[str, float]:
    found: dict[str, float] = {}
    if not takes(-_NEAR):
        if takes(0.0):
            found["minimum"] = 0
        elif takes(_NEAR):
            found["exclusiveMinimum"] = 0
    return found | _most(takes, _NEAR)


def _most(takes: Callable[[float], bool], beyond: float) -> dict[str, float]:
    most = next((most for most in _MOST if takes(most) and not takes(most + beyond)), None)
    return {} if most is None else {"maximum": most}
