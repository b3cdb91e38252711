"""Services that the tests host, also as a program: server_services.py NAME OPTIONS_AS_JSON."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bray_core import codec, metrics
from bray_core.errors import CodecError

Launch = Callable[..., tuple["subprocess.Popen[str]", list[str]]]


class Counter:
    """Counts its ticks; does as the body says."""

    def __init__(self, session: str) -> None:
        self.ticks = 0

    async def start(self, body: bytes) -> bytes:
        return str(os.getpid()).encode()

    async def tick(self, body: bytes) -> bytes:
        if body.startswith(b"sleep "):
            await asyncio.sleep(float(body[6:]))
        self.ticks += 1
        metrics.record("counter/ticks", 1, kind="count")
        return str(self.ticks).encode()

    async def end(self, body: bytes) -> bytes:
        return b"ended"


class Reader(Counter):
    """Reads what it is sent as a policy does."""

    async def tick(self, body: bytes) -> bytes:
        if body:
            with contextlib.suppress(CodecError):
                await codec.decode_async(body)
        return await super().tick(b"")


class Echo:
    """Stateless: sends the body back; many times if it says so."""

    async def tick(self, body: bytes) -> bytes:
        if body.startswith(b"times "):
            return b"x" * int(body[6:])
        return body


def main() -> None:
    """Serve until SIGTERM; prints the addresses first."""
    from bray_server import Limits, Tls, serve

    name, given = sys.argv[1], json.loads(sys.argv[2])
    options: dict[str, Any] = {**given, "limits": Limits(**given.pop("limits", {}))}
    if "group" in options:
        options["group"] = Path(options["group"])
    if "tls" in options:
        options["tls"] = Tls(**options["tls"])
    service: Any = {"Counter": Counter, "Reader": Reader, "Echo": Echo()}[name]
    serve(
        service,
        on_start=lambda server: print(
            json.dumps(server.addresses + server.worker_addresses), flush=True
        ),
        **options,
    )


if __name__ == "__main__":
    main()
