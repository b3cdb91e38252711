"""The least that a Python server can do: echo length-prefixed frames on uvloop.

python echo_tcp.py   # prints its port
"""

from __future__ import annotations

import asyncio
import struct

import uvloop

LENGTH = struct.Struct("<I")


class Echo(asyncio.Protocol):
    """Cuts frames of u32 length and body, and sends each back."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = transport
        self.buffer = bytearray()

    def data_received(self, data: bytes) -> None:
        """Echo the frames that are whole."""
        buffer = self.buffer
        buffer += data
        while len(buffer) >= 4:
            end = 4 + LENGTH.unpack_from(buffer)[0]
            if len(buffer) < end:
                return
            self.transport.write(bytes(buffer[:end]))
            del buffer[:end]


async def main() -> None:
    """Serve until killed."""
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


uvloop.run(main())
