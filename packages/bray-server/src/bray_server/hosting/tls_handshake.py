"""The time before a TLS connection is one: it has its place from the moment it is accepted."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import cast

from bray_server.hosting.connection import Connection


class TlsHandshake(asyncio.Protocol):
    """Hands a client that was accepted over to a connection with TLS.

    `create_server(ssl=…)` tells of a client only after its handshake, so that any number of them
    could be in one.

    Args:
        connection: What serves the client.
        context: Certificate of the server.
    """

    def __init__(self, connection: Connection, context: ssl.SSLContext) -> None:
        self._connection = connection
        self._context = context

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake on the socket, which outlives its plain transport."""
        connection = self._connection
        if connection.take_place(transport.get_extra_info("peername")):
            sock = cast(socket.socket, transport.get_extra_info("socket").dup())
            connection.host.spawn(self._shake_hands(sock))
        cast(asyncio.Transport, transport).abort()

    async def _shake_hands(self, sock: socket.socket) -> None:
        connection = self._connection
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                sock,
                ssl=self._context,
                ssl_handshake_timeout=connection.limits.receive_timeout_s,
            )
        except (OSError, asyncio.CancelledError):  # SSLError is one; the server stops
            connection.connection_lost(None)
