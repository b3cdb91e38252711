"""What the body of a `start` says of its session: agent, match, lane, spaces, phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bray_core import codec, nested
from bray_core.errors import CodecError, ConfigError, ServiceError
from bray_core.spaces import Spaces

MOST_BYTES = 16 * 1024**2
"""Bytes of one observation or action that a `start` may claim: those of a request's body."""
MOST_START_BYTES = 1024**2
"""Bytes of the body of a `start`."""
MOST_VALUES = 1 << 16
"""Values that the categories of an observation or an action may have together, as a `start` says:
a network has weights for each."""
MOST_NAME = 200
"""Characters of the name of an agent, a policy or a match."""
MOST_SIDES = 64
"""Sessions that play one match together."""
MOST_NUMBERS = 1 << 16
"""Numbers of all arrays in the body of a `start`: sizes and bounds of spaces."""
EVALUATION = "evaluation"


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionStart:
    """What a simulator says of a session when it starts it; all of it may be absent."""

    lane: str | None = None
    """The place where its episodes follow one another."""
    spaces: Mapping[str, Any] | None = None
    """What it shows and takes, not read yet."""
    phase: str = ""
    """`evaluation`: it is played by the evaluated policy, and nothing is recorded."""
    agent: str | None = None
    """Who of a game it is, such as `hunter_0`."""
    policy: str | None = None
    """Name of the policy that it asks for, whoever it is."""
    match: str | None = None
    """The match that it plays with other sessions."""
    side: int | None = None
    """Number of its side in the match, from 0."""
    sides: int | None = None
    """Number of sessions that play the match together."""

    @classmethod
    async def of_body(cls, body: bytes) -> SessionStart:
        """Read the body of a `start`, in the codec or JSON; nothing is an empty one.

        Raises:
            ServiceError: `bad_request`: it is no mapping, or a value of another type.
        """
        if not body:
            return cls()
        try:
            message = await codec.decode_async(body, max_bytes=MOST_START_BYTES)
        except CodecError as error:
            text = f"body: expected bray's codec or JSON: {error}"
            raise ServiceError("bad_request", text) from error
        if not isinstance(message, dict):
            raise _wrong("body", "a mapping", message)
        return cls.read(message)

    @classmethod
    def read(cls, message: Mapping[str, Any]) -> SessionStart:
        """Read the body of a `start`; keys that are not known are left alone, null is absent.

        Raises:
            ServiceError: `bad_request`: a value is of another type, and the key is named; or there
                are too many numbers.
        """
        if (size := _size(message)) > MOST_NUMBERS:
            most = f"expected at most {MOST_NUMBERS:,} numbers in lists and arrays"
            cure = "give one bound for all elements, or declare source.spaces"
            raise ServiceError("bad_request", f"body: {most}, got {size:,}: {cure}")
        lane, spaces = plain(message.get("lane")), plain(message.get("spaces"))
        tags = {} if message.get("tags") is None else plain(message["tags"])
        if isinstance(lane, bool) or not isinstance(lane, int | str | None):
            raise _wrong("lane", "a number or a name", lane)
        if not isinstance(spaces, dict | None):
            raise _wrong("spaces", "a mapping of observation and action", spaces)
        if not isinstance(tags, dict):
            raise _wrong("tags", "a mapping", tags)
        phase = "" if tags.get("phase") is None else tags["phase"]
        if not isinstance(phase, str):
            raise _wrong("tags: phase", "a word such as evaluation", phase)
        side, sides = _sides(message)
        return cls(
            lane=None if lane is None else str(lane),
            spaces=spaces,
            phase=phase,
            agent=_name(message, "agent"),
            policy=_name(message, "policy"),
            match=_name(message, "match" if message.get("match") is not None else "game"),
            side=side,
            sides=sides,
        )


def _name(message: Mapping[str, Any], key: str) -> str | None:
    """Return a name, which may be a number."""
    value = plain(message.get(key))
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise _wrong(key, "a name or a number", value)
    if not 0 < len(name := str(value)) <= MOST_NAME:
        got = f"got {len(name)}"
        raise ServiceError("bad_request", f"{key}: expected 1 to {MOST_NAME} characters, {got}")
    return name


def _sides(message: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return the number of a session's side, and how many there are."""
    sides = _whole(message, "sides", 1, MOST_SIDES)
    last = (MOST_SIDES if sides is None else sides) - 1
    return _whole(message, "side", 0, last), sides


def _whole(message: Mapping[str, Any], key: str, low: int, high: int) -> int | None:
    value = plain(message.get(key))
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _wrong(key, f"a whole number from {low} to {high}", value)
    return value


_FROM_HERE_ON = 2.0**63
"""Larger numbers stay floating-point numbers: as whole ones they would have hundreds of digits."""


def _wrong(name: str, wanted: str, got: object) -> ServiceError:
    return ServiceError("bad_request", f"{name}: expected {wanted}, got {got!r:.100}")


def told_spaces(origin: str, described: Mapping[str, Any]) -> Spaces:
    """Read the spaces that a `start` tells.

    Args:
        origin: Where they were told, for messages.
        described: As `Spaces.parse` takes them.

    Raises:
        ServiceError: `bad_spaces`: they are no spaces, or claim more than a simulator can send.
    """
    try:
        spaces = Spaces.parse(origin, described)
    except ConfigError as error:
        raise ServiceError("bad_spaces", str(error)) from error
    for name, space in (("observation", spaces.observation), ("action", spaces.action)):
        leaves = nested.flatten(space).values()
        size = sum(leaf.num_numbers * np.dtype(leaf.dtype).itemsize for leaf in leaves)
        values = sum(sum(leaf.sizes) for leaf in leaves)
        if size > MOST_BYTES:
            most = f"expected at most {MOST_BYTES:,} bytes"
            raise ServiceError("bad_spaces", f"{origin}: {name}: {most}, got {size:,}")
        if values > MOST_VALUES:
            most = f"expected at most {MOST_VALUES:,} values of categories"
            raise ServiceError(
                "bad_spaces", f"{origin}: {name}: {most}, got {values:,}: declare source.spaces"
            )
    return spaces


def _size(value: Any) -> int:
    """Return the number of elements of all arrays."""
    if isinstance(value, Mapping):
        return sum(map(_size, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_size, value))
    return value.size if isinstance(value, np.ndarray) else 0


def plain(value: Any) -> Any:
    """Return what the codec or JSON brings as lists and numbers, as a template would hold it.

    Numbers without a fraction become whole: some clients know floating-point numbers alone.
    """
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.kind in "biu":
            return value.tolist()
        value = value.tolist()
    if isinstance(value, Mapping):
        return {name: plain(child) for name, child in value.items()}
    if isinstance(value, list | tuple):
        return [plain(child) for child in value]
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < _FROM_HERE_ON
    return int(value) if is_whole else value
