"""The least that a Python HTTP server can do: httptools on uvloop, the body sent back.

python echo_http.py   # prints its port
"""

from __future__ import annotations

import asyncio

import httptools
import uvloop


class Echo(asyncio.Protocol):
    """Answers every request with its own body."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)
        self.parts: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        """Parse."""
        self.parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        """Gather the body."""
        self.parts.append(data)

    def on_message_complete(self) -> None:
        """Send it back."""
        body = b"".join(self.parts)
        self.parts = []
        self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


async def main() -> None:
    """Serve until killed."""
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


uvloop.run(main())
