"""Addresses of servers: `tcp://host:port`, `http://host:port`, and `tcps` and `https` with TLS."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from bray_core.errors import ConfigError

_SCHEMES = ("tcp", "tcps", "http", "https")


class Address(NamedTuple):
    """Address of a server."""

    scheme: str
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read an address.

        Raises:
            ConfigError: The text has another form.
        """
        try:
            parts = urlsplit(text)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if not host or not port or parts.scheme not in _SCHEMES or parts.path not in ("", "/"):
            raise ConfigError(
                "address: expected tcp://host:port or http://host:port, or tcps:// or https:// "
                f"with TLS, got {text!r}"
            )
        return cls(parts.scheme, host, port)

    @property
    def is_tcp(self) -> bool:
        """Whether the server speaks the binary protocol there."""
        return self.scheme.startswith("tcp")

    @property
    def is_tls(self) -> bool:
        """Whether the connection uses TLS."""
        return self.scheme.endswith("s")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"
