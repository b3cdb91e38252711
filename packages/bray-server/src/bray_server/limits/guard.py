"""Rules for a port that a browser must not reach on behalf of another site.

A page of any site can make its visitor's browser send requests to ports of the visitor's machine.
Two things give such a request away: its `Origin` is another than its `Host`, or its `Host` is a
name that only resolves to this machine (DNS rebinding). A port with a token needs no check of the
name: the browser does not know the token.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

from bray_core.errors import ConfigError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Names by which a program on this machine calls it."""


def is_loopback(host: str) -> bool:
    """Return whether an address to listen at is reached from this machine only."""
    address = _address(host)
    return host.lower() == "localhost" or (address is not None and address.is_loopback)


def check_bind(host: str, *, has_token: bool, asked_for: bool = False, cure: str) -> None:
    """Refuse to listen beyond this machine without a token, unless it was asked for by name.

    Args:
        host: address to listen at.
        has_token: whether clients need a token.
        asked_for: whether the user said that nobody needs one.
        cure: what the user may do about it.

    Raises:
        ConfigError: the address is open to others, and so would the service be.
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
        host: the header `Host`.
        origin: the header `Origin`, which browsers add to what could change something; None
            where there is none.
        site: likewise the header `Sec-Fetch-Site`.
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
