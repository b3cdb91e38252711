"""Numbers and texts read from a request, and JSON replies that a browser fetches only once."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping

import msgspec
import numpy as np
from aiohttp import web

from bray_core.errors import ConfigError


def query_number(
    query: Mapping[str, str], name: str, default: float, least: float, most: float
) -> float:
    """Return a number of a query.

    Raises:
        ConfigError: the text is no number, or out of range; names the field.
    """
    text = query.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:  # NaN too: it compares as false
        raise ConfigError(f"{name}: expected {least:g} to {most:g}, got {text[:20]!r}")
    return value


def query_integer(query: Mapping[str, str], name: str) -> int | None:
    """Return a whole number of a query; None where it is not given.

    Raises:
        ConfigError: the text is no whole number; names the field.
    """
    text = query.get(name)
    if text is None:
        return None
    # isdecimal alone takes digits of other scripts; 16 digits are more than a float keeps.
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise ConfigError(f"{name}: expected a whole number of 0 or more, got {text[:20]!r}")
    return int(text)


def text_field(content: Mapping[str, object], name: str) -> str:
    """Return a text of a query or of a posted object.

    Raises:
        ConfigError: the value is no text; names the field.
    """
    text = content.get(name)
    if not isinstance(text, str):
        raise ConfigError(f"{name}: expected a text, got {type(text).__name__}")
    return text


async def posted_object(request: web.Request) -> dict[str, object]:
    """Return the JSON object that was posted.

    Raises:
        ConfigError: the body is no JSON object.
    """
    try:
        content = json.loads(await request.read())  # whatever charset the head names
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"body: expected JSON: {type(error).__name__}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"body: expected a JSON object, got {type(content).__name__}")
    return content


def json_reply(request: web.Request, content: object) -> web.Response:
    """Return JSON, or status 304 where the browser has the same content already."""
    body = _encoded(content)
    tag = hashlib.blake2b(body, digest_size=12).hexdigest()
    if request.headers.get("If-None-Match") == f'"{tag}"':
        return web.Response(status=304, headers={"ETag": f'"{tag}"'})
    response = web.Response(
        body=body, content_type="application/json", headers={"ETag": f'"{tag}"'}
    )
    if len(body) > 2000:  # shorter ones fit into few packets anyway
        response.enable_compression()
    return response


def _encoded(content: object) -> bytes:
    try:
        return msgspec.json.encode(content)  # what is not finite becomes null
    except (TypeError, ValueError, OverflowError):  # numpy's numbers, endless ones, broken text
        return json.dumps(_plain(content), separators=(",", ":"), allow_nan=False).encode()


def _plain(content: object) -> object:
    """Return content that JSON can hold: infinity and NaN become null."""
    if isinstance(content, dict):
        return {key: _plain(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_plain(value) for value in content]
    if isinstance(content, float | np.floating):
        return float(content) if math.isfinite(content) else None
    return int(content) if isinstance(content, np.integer) else content
