"""bray's server with a service of the benchmark: python bray_service.py SERVICE [GROUP PORT].

Prints a JSON line: TCP port, HTTP port, direct TCP port. With GROUP (a folder) several processes
share PORT.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from bray_server import ServerThread, serve


class Echo:
    """A session that sends the body back."""

    def __init__(self, session: str) -> None: ...

    async def start(self, body: bytes) -> bytes:
        """Begin."""
        return body

    async def tick(self, body: bytes) -> bytes:
        """Answer."""
        return body

    async def end(self, body: bytes) -> bytes:
        """End."""
        return body


class Call:
    """A service without sessions that sends the body back."""

    async def tick(self, body: bytes) -> bytes:
        """Answer."""
        return body


class Busy(Echo):
    """A session whose tick computes for 0.2 ms of processor time."""

    async def tick(self, body: bytes) -> bytes:
        """Answer."""
        until = time.thread_time_ns() + 200_000
        while time.thread_time_ns() < until:
            pass
        return body


def say(server: ServerThread) -> None:
    """Tell the ports."""
    found = [int(a.rpartition(":")[2]) for a in (*server.addresses, *server.worker_addresses)]
    print(json.dumps(found), flush=True)


def main() -> None:
    """Serve until SIGTERM."""
    service: Any = {"Echo": Echo, "Call": Call(), "Busy": Busy}[sys.argv[1]]
    options: dict[str, Any] = {"http_port": 0}
    if len(sys.argv) > 2:
        options = {"group": Path(sys.argv[2]), "tcp_port": int(sys.argv[3])}
    serve(service, on_start=say, drain_s=0.0, **options)


if __name__ == "__main__":
    main()
