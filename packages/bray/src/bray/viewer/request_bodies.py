"""The content of recorded requests and replies, decoded at a cost that their length bounds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from bray_core import codec
from bray_core.errors import CodecError
from bray_core.files.json_file import finite, is_deeper

MAX_LEAVES = 2000
"""Number of a body's leaves that are looked at."""
_MAX_BODY_BYTES = 64 * 1024 * 1024
_MAX_JSON_BYTES = 1024 * 1024
"""Longer JSON is shown as text."""
_MAX_DEPTH = 32
_MAX_REWARD_BYTES = 256
_MAX_KEY = 100
_MAX_NAMES = 64
_SHOWN_ELEMENTS = 64
_SHOWN_LEAVES = 200
_SHOWN_TEXT = 2000


class _Rewarded(msgspec.Struct):
    """The reward of a body; the decoder skips all other fields without making them."""

    reward: bool | float | msgspec.msgpack.Ext | None = None


class _Valued(msgspec.Struct):
    """The value in a reply; the decoder skips all other fields without making them."""

    value: bool | float | msgspec.msgpack.Ext | None = None


class _Named(msgspec.Struct):
    """The names of choices in a body; the decoder skips all other fields without making them."""

    action_names: list[str] = []


_NAMED = msgspec.msgpack.Decoder(_Named)
_REWARDED = msgspec.msgpack.Decoder(_Rewarded)
_VALUED = msgspec.msgpack.Decoder(_Valued)


def decode_body(body: bytes) -> Any:
    """Return a body's content: arrays of bray's codec, JSON, text, or else the bytes themselves."""
    if not body:
        return None
    try:
        return codec.decode(body, max_bytes=_MAX_BODY_BYTES)
    except CodecError:
        pass
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return body
    found = _json(text)
    return text if found is None else found


def _json(text: str) -> Any:
    """Return the content of JSON; None where the text is no JSON, too long or nested too deeply."""
    if len(text) > _MAX_JSON_BYTES:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return None if is_deeper(found, _MAX_DEPTH) else found


def reward_of(body: bytes) -> float | None:
    """Return the reward in a body, None where there is none that is a number."""
    if body[:1] == b"{":
        found = _json(body.decode(errors="replace"))
        return _number(found.get("reward")) if isinstance(found, dict) else None
    try:
        return _number(_whole(_REWARDED.decode(body).reward))
    except (msgspec.MsgspecError, CodecError, RecursionError):
        return None


def value_of(reply: bytes | None) -> float | None:
    """Return the value that a policy gave the state, None where its reply does not say it."""
    try:
        return None if reply is None else _number(_whole(_VALUED.decode(reply).value))
    except (msgspec.MsgspecError, CodecError, RecursionError):
        return None


def action_names_of(body: bytes) -> list[str]:
    """Return what an environment calls its choices, as its first message tells; else none."""
    try:
        found = _NAMED.decode(body).action_names
    except (msgspec.MsgspecError, RecursionError):
        return []
    return [name[:_MAX_KEY] for name in found[:_MAX_NAMES]]


def _whole(found: object) -> object:
    if not isinstance(found, msgspec.msgpack.Ext):
        return found
    return codec.decode(msgspec.msgpack.encode(found), max_bytes=_MAX_REWARD_BYTES)


def _number(value: object) -> float | None:
    if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "biuf":
        value = value.item()
    return float(value) if isinstance(value, bool) else finite(value)


def leaf_paths(tree: object, most: int = MAX_LEAVES) -> list[tuple[str, object]]:
    """Return path and value of the first leaves of a tree, in the order of `bray_core.nested`.

    Keys are cut to 100 characters: a leaf's path repeats the keys above it, so that long keys
    would cost their length once for each leaf.
    """
    if isinstance(tree, dict | list | tuple):
        return list(islice(_leaves(tree, ""), most))
    return [] if tree is None else [("", tree)]


def _leaves(tree: object, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(tree, dict):
        for key in sorted(tree):
            short = key[:_MAX_KEY]
            yield from _leaves(tree[key], f"{path}/{short}" if path else short)
    elif isinstance(tree, list | tuple):
        for index, child in enumerate(tree):
            yield from _leaves(child, f"{path}[{index}]")
    else:
        yield path, tree


def describe_leaves(tree: object) -> list[dict[str, object]]:
    """Return path, type, shape, bounds and the first values of each leaf, for reading."""
    return [_leaf(path, leaf) for path, leaf in leaf_paths(tree, _SHOWN_LEAVES)]


def _leaf(path: str, leaf: object) -> dict[str, object]:
    if isinstance(leaf, bytes):
        text = f"{len(leaf)} bytes: {leaf[:32].hex(' ')}"
        return {"path": path, "type": "bytes", "text": text}
    if isinstance(leaf, str):
        return {"path": path, "type": "str", "text": leaf[:_SHOWN_TEXT]}
    if not isinstance(leaf, int | float | np.ndarray | np.generic) or isinstance(leaf, bool):
        return {"path": path, "type": type(leaf).__name__, "text": str(leaf)[:_SHOWN_TEXT]}
    array = np.asarray(leaf)
    shown: dict[str, object] = {"path": path, "type": str(array.dtype), "shape": list(array.shape)}
    if array.dtype.kind not in "biuf" or not array.size:
        return {**shown, "text": str(array)[:_SHOWN_TEXT]}
    with np.errstate(all="ignore"):
        values = array.ravel()[:_SHOWN_ELEMENTS].astype(np.float64)
        finite_values = array[np.isfinite(array)] if array.dtype.kind == "f" else array
        if finite_values.size:
            mean = float(finite_values.mean(dtype=np.float64))
            bounds = (float(finite_values.min()), float(finite_values.max()))
            shown |= {"min": bounds[0], "max": bounds[1], "mean": mean}
    shown["values"] = [float(f"{v:.6g}") if np.isfinite(v) else str(v) for v in values.tolist()]
    return shown
