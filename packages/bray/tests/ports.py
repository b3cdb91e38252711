"""Ports for servers that are told theirs."""

from __future__ import annotations

import contextlib
import random
import socket


def free_port() -> int:
    """Return a port that, as the next one, no system hands out by itself: both stay free."""
    while True:
        port = random.randrange(20_000, 32_000, 2)
        with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + 1))
            return port
