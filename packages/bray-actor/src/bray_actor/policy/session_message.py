"""What a session's requests hold: read, and refused in words where it is something else."""

from __future__ import annotations

import reprlib
from typing import Any

import numpy as np

from bray_actor.episodes import checked_metrics, record_metrics
from bray_core import codec, nested
from bray_core.errors import CodecError, ServiceError, SpecError
from bray_core.json_body import JsonBody
from bray_core.nested import Nested

_END_KEYS = {"observation", "reward", "terminated", "truncated", "score", "metrics"}
"""What the protocol knows in an `end`."""


async def decoded(body: bytes) -> dict[str, Any]:
    """Return the dict that a request holds; nothing is an empty one.

    Raises:
        ServiceError: `bad_request`: it holds something else.
    """
    if not body:
        return {}
    is_json = type(body) is JsonBody
    try:
        message = await codec.decode_async(body, max_bytes=len(body))
    except CodecError as error:
        text = f"{error}" if is_json else f"expected bray's codec: {type(error).__name__}: {error}"
        raise ServiceError("bad_request", f"body: {text}") from error
    if not isinstance(message, dict):
        wanted = "an object" if is_json else "a dict in bray's codec"
        is_list = is_json and isinstance(message, list | np.ndarray)
        got = "a list" if is_list else type(message).__name__
        raise ServiceError("bad_request", f"body: expected {wanted}, got {got}")
    return message


def recorded_metrics(message: dict[str, Any], labels: dict[str, str]) -> dict[str, float]:
    """Record what a simulator says of its episode, and return it.

    Raises:
        ServiceError: `bad_request`: these are no metrics, or too many.
    """
    if message.get("metrics") is None:
        return {}
    try:
        found = checked_metrics(message["metrics"])
        record_metrics(found, **labels)
    except SpecError as error:
        raise ServiceError("bad_request", str(error)) from error
    return found


def required(message: dict[str, Any], name: str) -> Nested:
    """Return a part of a request. Raises ServiceError: `bad_request`: it is absent."""
    if name not in message:
        got = reprlib.repr(sorted(message))
        raise ServiceError("bad_request", f"body: expected the key {name!r}, got {got}")
    return message[name]


def check_flags(message: dict[str, Any]) -> None:
    """Refuse an `end` that says how its episode ended by a word that is none of the protocol's.

    An `end` with keys of the protocol alone may leave both flags out: the episode was cut.

    Raises:
        ServiceError: `bad_request`: it has other keys, and neither flag.
    """
    others = sorted(set(message) - _END_KEYS, key=str)
    if others and not {"terminated", "truncated"} & set(message):
        wanted = "expected terminated (by the rules) or truncated (by something else)"
        raise ServiceError("bad_request", f"body: {wanted}, got {reprlib.repr(others)}")


def check_finite(observation: Nested) -> None:
    """Refuse an observation that is not finite: that no policy sees, or that none could answer.

    Raises:
        ServiceError: `bad_request`: a number of it is NaN or infinite as a float32.
    """
    for path, leaf in nested.items(observation):
        if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f":
            with np.errstate(over="ignore"):
                is_finite = np.isfinite(leaf.astype(np.float32, copy=False)).all()
            if not is_finite:
                name = nested.join("observation", path) if path else "observation"
                raise ServiceError("bad_request", f"{name}: expected finite numbers (float32)")


def plain_number(message: dict[str, Any], name: str, default: object = None) -> Any:
    """Return a part of a request; an array without dimensions, `np.float32(1)`, is a number."""
    value = message.get(name, default)
    return value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value


def score_of(message: dict[str, Any]) -> float | None:
    """Return the score of a match. Raises ServiceError: `bad_request`: it is none."""
    score = plain_number(message, "score")
    if score is None:
        return None
    if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1:
        wanted = "expected a number from 0 (lost) to 1 (won)"
        raise ServiceError("bad_request", f"score: {wanted}, got {score!r:.100}")
    return float(score)


def flag_of(message: dict[str, Any], name: str) -> bool:
    """Return a flag, false where it is absent. Raises ServiceError: `bad_request`: it is none."""
    value = plain_number(message, name, False)
    if not isinstance(value, int | float):
        got = type(value).__name__
        raise ServiceError("bad_request", f"{name}: expected true or false, got {got}")
    return bool(value)
