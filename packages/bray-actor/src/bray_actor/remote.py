"""Actors in worker processes on Ray."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from bray_core.errors import ConfigError
from bray_core.protocols import Actor
from bray_server import Limits, Tls
from bray_server.remote import RemoteServer


class RemoteActor(RemoteServer):
    """A pool of workers that answer gamecores on one port; see `bray_server.remote.RemoteServer`.

    Args:
        name: of the pool.
        actor: a class whose instances answer one session each, made with its id; or a function
            that is called once in each worker and returns what makes a session's actor from its
            id, so that model replicas and buffer handles are made there.
        num_workers: how many.
        sessions_per_worker: beyond it a worker answers `too_many_sessions`; None takes that of
            `limits`.
        port: of the binary protocol; 0 takes any free one.
        http_port: likewise for HTTP; None offers none.
        host, limits, tokens, tls: as for `bray_server.Server`.
    """

    def __init__(
        self,
        name: str,
        actor: Callable[[str], Actor] | Callable[[], Callable[[str], Actor]],
        *,
        num_workers: int = 1,
        sessions_per_worker: int | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        http_port: int | None = None,
        limits: Limits | None = None,
        tokens: Sequence[str] = (),
        tls: Tls | None = None,
    ) -> None:
        if sessions_per_worker is not None:
            if sessions_per_worker < 1:
                raise ConfigError(
                    f"sessions_per_worker: expected 1 or more, got {sessions_per_worker}"
                )
            limits = replace(limits or Limits(), max_sessions=sessions_per_worker)
        super().__init__(
            name,
            actor,
            num_workers=num_workers,
            host=host,
            tcp_port=port,
            http_port=http_port,
            limits=limits,
            tokens=tokens,
            tls=tls,
        )
