"""How much of a table one client may take, so that the last part is left to others."""

from __future__ import annotations

import math
from collections import Counter
from ipaddress import IPv6Address, ip_address
from typing import Any

_UNDIVIDED = 32
"""A table with fewer places is one client's if it likes: whoever sets so few counts them."""


class ClientShares:
    """Counts places by client.

    Args:
        num_places: places in the table.
        share: the part of them that one client may have.
    """

    def __init__(self, num_places: int, share: float) -> None:
        divided = math.ceil(num_places * share)
        self.max_places = num_places if num_places < _UNDIVIDED else divided
        """Places that one client may have."""
        self._taken: Counter[str] = Counter()

    def take(self, client: str) -> bool:
        """Take a place; False: the client has its share already. Whoever has no name has none."""
        if not client:
            return True
        if self._taken[client] >= self.max_places:
            return False
        self._taken[client] += 1
        return True

    def give(self, client: str) -> None:
        """Give a place back."""
        if client:
            self._taken[client] -= 1
            if not self._taken[client]:
                del self._taken[client]


def client_of(peer: Any) -> str:
    """Return the name of the client at a socket's peer address; empty for another worker.

    An IPv6 host has a whole /64 of addresses, so that is its name.
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
