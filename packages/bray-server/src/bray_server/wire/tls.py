"""TLS: the certificate of a server, and what a client trusts."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from bray_core.errors import ConfigError
from bray_server.wire.address import Address


@dataclass(frozen=True, kw_only=True, slots=True)
class Tls:
    """The certificate that a server proves its name with."""

    certificate: Path | str
    """PEM file: the server's certificate, then those between it and the authority."""
    key: Path | str
    """PEM file: its private key."""

    def context(self) -> ssl.SSLContext:
        """Return the server's TLS context: TLS 1.2 or newer.

        Raises:
            ConfigError: A file is missing, or the two do not belong together.
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


def client_tls_context(
    address: Address, certificate_authority: str | Path | None
) -> ssl.SSLContext | None:
    """Return how a client checks the server at an address, or None without TLS.

    Args:
        address: Address of the server.
        certificate_authority: PEM file to trust instead of the system's authorities.

    Raises:
        ConfigError: The file cannot be read, or is given without TLS.
    """
    if not address.is_tls:
        if certificate_authority is not None:
            raise ConfigError(f"certificate_authority: {address} does not use TLS")
        return None
    try:
        context = ssl.create_default_context(cafile=certificate_authority)
        # A certificate that is trusted itself needs no authority: Python 3.13's default.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        return context
    except OSError as error:  # SSLError is one
        raise ConfigError(
            f"certificate_authority: expected a PEM file, cannot use "
            f"{str(certificate_authority)!r}: {error}"
        ) from error
