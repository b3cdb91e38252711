"""Limiting the share of a table that one client takes, so that the rest is left to others."""

from __future__ import annotations

import math
from collections import Counter
from ipaddress import IPv6Address, ip_address
from typing import Any

_UNDIVIDED = 32
"""Number of places below which a table is not divided: one client may have all of it."""


class ClientShares:
    """Counts the places in a table that each client has.

    Args:
        num_places: Number of places in the table.
        share: Part of the places that one client may have.
    """

    def __init__(self, num_places: int, share: float) -> None:
        divided = math.ceil(num_places * share)
        self.max_places = num_places if num_places < _UNDIVIDED else divided
        """Number of places that one client may have."""
        self._taken: Counter[str] = Counter()

    def take(self, client: str) -> bool:
        """Take a place; False if the client has its share; no name, no limit."""
        if not client:
            return True
        if self._taken[client] >= self.max_places:
            return False
        self._taken[client] += 1
        return True

    def give(self, client: str) -> None:
        """Give a client's place back."""
        if client:
            self._taken[client] -= 1
            if not self._taken[client]:
                del self._taken[client]


def client_of(peer: Any) -> str:
    """Return the name of the client at a socket's peer address; empty for another worker.

    The name of an IPv6 client is its /64 network: one host has all addresses of it.
    """
    if not isinstance(peer, tuple):
        return ""
    try:
        address = ip_address(peer[0].partition("%")[0])
    except ValueError:
        return str(peer[0])
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(IPv6Address(int(address) >> 64 << 64))
    return str(address)
