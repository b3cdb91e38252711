"""Who may use a port: bearer tokens, and rules against pages of other sites.

A page of any site can make its visitor's browser send requests to ports of the visitor's machine.
Two things give such a request away: its `Origin` is another than its `Host`, or its `Host` is a
name that only resolves to this machine (DNS rebinding). A port with a token needs no check of the
name: the browser does not know the token.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

from bray_core.errors import ConfigError

_MAX_TOKEN_BYTES = 4096
LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Names of this machine for programs that run on it."""


class Tokens:
    """Bearer tokens that a server accepts; several at once, so that they can be rotated."""

    def __init__(self, tokens: Sequence[str]) -> None:
        if isinstance(tokens, str) or not all(tokens):
            raise ConfigError("tokens: expected a list of non-empty strings")
        if any(token.strip() != token or not token.isprintable() for token in tokens):
            raise ConfigError(
                "tokens: expected no spaces around a token and no line breaks, which no HTTP "
                "header can have: was one read with the end of its line?"
            )
        self._tokens = [token.encode() for token in tokens]

    @property
    def max_bytes(self) -> int:
        """Bytes that an unknown client may send: those of a token, though perhaps a wrong one."""
        return max([_MAX_TOKEN_BYTES, *map(len, self._tokens)])

    @property
    def required(self) -> bool:
        """Whether clients need a token."""
        return bool(self._tokens)

    def accept(self, token: bytes) -> bool:
        """Return whether a token is accepted; always where none is required."""
        # Each token is compared, in constant time: how long it takes tells nothing about any.
        matches = [hmac.compare_digest(token, known) for known in self._tokens]
        return any(matches) or not self._tokens

    def accept_header(self, authorization: bytes) -> bool:
        """Return whether an `Authorization: Bearer …` header is accepted."""
        scheme, _, token = authorization.partition(b" ")
        return not self._tokens or (scheme.lower() == b"bearer" and self.accept(token.strip()))


def is_loopback(host: str) -> bool:
    """Return whether an address to listen at is reached from this machine only."""
    address = _address(host)
    return host.lower() == "localhost" or (address is not None and address.is_loopback)


def check_bind(host: str, *, has_token: bool, asked_for: bool = False, cure: str) -> None:
    """Refuse to listen beyond this machine without a token, unless it was asked for by name.

    Args:
        host: Address to listen at.
        has_token: Whether clients need a token.
        asked_for: Whether the user said that nobody needs one.
        cure: What the user may do about it, for the message.

    Raises:
        ConfigError: The address is open to others, and so would the service be.
    """
    if not (has_token or asked_for or is_loopback(host)):
        raise ConfigError(f"--host: whoever reaches {host!r} could use every port: {cure}")


def host_name(header: str) -> str:
    """Return the name in a `Host` header, without the port and in lower case."""
    name, colon, port = header.rpartition(":")
    return (name if colon and port.isdecimal() else header).strip("[]").lower()


def is_own_name(header: str, listening_at: str = "127.0.0.1") -> bool:
    """Return whether a `Host` header names this very machine.

    Beyond loopback any IP address will do, and the name that the server listens at: only names
    can be rebound.
    """
    name = host_name(header)
    if name in LOOPBACK or name == listening_at.strip("[]").lower():
        return True
    return not is_loopback(listening_at) and _address(name) is not None


def is_same_origin(host: str, origin: str | None, site: str | None) -> bool:
    """Return whether no other site's page sent a request.

    Args:
        host: The header `Host`.
        origin: The header `Origin`, which browsers add to requests that could change something.
        site: The header `Sec-Fetch-Site`, which browsers add, too.
    """
    if origin is not None and _netloc(origin) != host.lower():
        return False
    return site is None or site == "same-origin"


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:  # such as "http://[": no browser's
        return None


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text.strip("[]"))
    except ValueError:
        return None
