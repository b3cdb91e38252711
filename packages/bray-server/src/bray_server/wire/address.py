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
            ConfigError: The text has another form, says more than that, or the host cannot be one.
        """
        try:
            parts = urlsplit(text)
            host, port = parts.hostname or "", parts.port
            host.encode("idna")  # refuses empty parts, and those of more than 63 bytes
            is_bare = not (parts.username or parts.query or parts.fragment)
            fits = is_bare and parts.scheme in _SCHEMES and parts.path in ("", "/")
        except ValueError:
            fits, host, port = False, "", None
        if not (fits and host and port):
            raise ConfigError(
                "address: expected tcp://host:port or http://host:port, or tcps:// or https:// "
                f"with TLS, a port of 1 to 65535 and nothing else, got {text[:200]!r}"
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
