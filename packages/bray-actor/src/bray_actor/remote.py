"""Actors in worker processes on Ray."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bray_core.protocols import Actor
from bray_server import Limits
from bray_server.remote import RemoteServer


class RemoteActor(RemoteServer):
    """A pool of workers that answer gamecores, each on a port of its own.

    Args:
        name: of the pool.
        make_factory: called once in each worker; returns the function that makes a session's
            actor from its id, so that model replicas and buffer handles are made there.
        num_workers: how many.
        host, port, limits, tokens: as for `bray_server.Server`; worker i takes port + i.
    """

    def __init__(
        self,
        name: str,
        make_factory: Callable[[], Callable[[str], Actor]],
        *,
        num_workers: int = 1,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: Limits | None = None,
        tokens: Sequence[str] = (),
    ) -> None:
        super().__init__(
            name,
            make_factory,
            num_workers=num_workers,
            host=host,
            tcp_port=port,
            limits=limits,
            tokens=tokens,
        )
