"""Clients that gamecores call actors with: at an address, or in this process."""

from __future__ import annotations

from collections.abc import Sequence

from bray_core.errors import ConfigError, ServiceError
from bray_server import Client, InProcessClient, Limits, Request
from bray_server.sessions.services import Service


def connect(
    actors: str | Service, *, token: str | None, timeout_s: float, delta: bool = False
) -> Client:
    """Return a client of the actors at an address, or of those that a function makes.

    Raises:
        ServiceError: nothing listens at the address.
        ConfigError: an option is given that only an address takes.
    """
    if isinstance(actors, str):
        return Client(actors, token, timeout_s, delta=delta)
    if delta or token is not None:
        raise ConfigError(
            f"{'delta' if delta else 'token'}: only with an address, got actors in this process"
        )
    limits = Limits(tick_timeout_s=timeout_s)
    return InProcessClient(actors, limits=limits, timeout_s=timeout_s)


def exchange_bodies(client: Client, requests: Sequence[Request]) -> list[bytes]:
    """Return the bodies of all replies, in the order of the requests: the first error ends a game.

    Raises:
        ServiceError: the first error among them.
    """
    bodies = []
    for reply in client.exchange(requests):
        if isinstance(reply, ServiceError):
            raise reply
        bodies.append(reply)
    return bodies
