"""Many requests at once, for gamecores: the first error ends the game."""

from __future__ import annotations

from collections.abc import Sequence

from bray_core.errors import ServiceError
from bray_server import Client, Request


def exchange_bodies(client: Client, requests: Sequence[Request]) -> list[bytes]:
    """Return the bodies of all replies, in the order of the requests.

    Raises:
        ServiceError: the first error among them.
    """
    bodies = []
    for reply in client.exchange(requests):
        if isinstance(reply, ServiceError):
            raise reply
        bodies.append(reply)
    return bodies
