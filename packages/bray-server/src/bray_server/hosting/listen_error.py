"""What is wrong with an address that a server was to listen at."""

from __future__ import annotations

import errno

from bray_core.errors import BrayError, ConfigError, PortInUseError


def listen_error(name: str, host: str, port: int, error: OSError | UnicodeError) -> BrayError:
    """Return the error that says why nobody can listen at an address.

    Args:
        name: Name of the port, such as `tcp port`.
        host: Address or name of this machine.
        port: The port.
        error: What the system, or the look-up of the name, said.
    """
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return PortInUseError(host, port, f"choose another {name}, or 0 for any free one")
    why = getattr(error, "strerror", None) or str(error)
    return ConfigError(
        f"host: expected an address of this machine with a {name} that may be opened, got "
        f"{host[:100]!r} and {port}: {why}"
    )
