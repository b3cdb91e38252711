"""Ports at which the simulators of a run find it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bray.sources.config import GamecoreSourceConfig, ServingActorConfig
from bray_actor.gamecores.simulators import placeholders
from bray_server.wire.address import Address

DEFAULT_PORT = 7300
"""TCP port of a run whose external simulators were told no other."""


class SimulatorPorts(NamedTuple):
    """Ports to open; 0 takes any free one, None opens none."""

    tcp: int
    http: int | None

    @classmethod
    def of(cls, source: GamecoreSourceConfig, actor: ServingActorConfig) -> SimulatorPorts:
        """Return the ports of a run: those that were set, else what its simulators need."""
        if source.external:
            tcp = actor.port or DEFAULT_PORT
            return cls(tcp, tcp + 1 if actor.http_port is None else actor.http_port)
        needs_http = source.command is not None and "http_port" in placeholders(source.command)
        return cls(actor.port, 0 if actor.http_port is None and needs_http else actor.http_port)


def http_port_of(addresses: Sequence[str]) -> int | None:
    """Return the port for HTTP among the addresses of a server; None if it has none."""
    found = (Address.parse(address) for address in addresses)
    return next((address.port for address in found if not address.is_tcp), None)


def how_to_connect(addresses: Sequence[str]) -> str:
    """Return in words how an external simulator finds a server."""
    ways = [
        f"{address} (bray's frames: clients/cpp, clients/go, bray_server.Client)"
        if Address.parse(address).is_tcp
        else f"POST {address}/step (HTTP)"
        for address in addresses
    ]
    return f"simulators connect to {', or '.join(ways)}; the protocol: docs/protocol.md"
