"""TLS on the ports of a server."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from bray_core.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Tls:
    """What a server proves its name with."""

    certificate: Path | str
    """PEM file: the server's certificate, then those between it and the authority."""
    key: Path | str
    """PEM file: its private key."""

    def context(self) -> ssl.SSLContext:
        """Return the server's TLS context: TLS 1.2 or newer.

        Raises:
            ConfigError: a file is missing, or the two do not belong together.
        """
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key)
        except OSError as error:  # SSLError is one
            raise ConfigError(
                f"tls: cannot use certificate {str(self.certificate)!r} with key "
                f"{str(self.key)!r}: {error}"
            ) from error
        return context
