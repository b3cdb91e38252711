"""Addresses of servers: `tcp://host:port` and `http://host:port`."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from bray_core.errors import ConfigError


class Address(NamedTuple):
    """Where a server listens."""

    scheme: str
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read an address.

        Raises:
            ConfigError: not of the form above.
        """
        parts = urlsplit(text)
        try:
            port = parts.port
        except ValueError:
            port = None
        if parts.scheme not in ("tcp", "http") or not parts.hostname or not port:
            raise ConfigError(
                f"address: expected tcp://host:port or http://host:port, got {text!r}"
            )
        return cls(parts.scheme, parts.hostname, port)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"
