"""Reserving a port on which several processes will listen."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from bray_core.settings.ranges import Port, check_value
from bray_server.hosting.listen_error import listen_error


@contextlib.contextmanager
def reserved_port(host: str, name: str, port: int | None) -> Iterator[int | None]:
    """Hold a port, without listening, for the workers that will listen on it.

    With SO_REUSEPORT any process of this user could listen there too and be given half of the
    connections. So a port on which somebody listens already is refused here.

    Args:
        host: Address to bind.
        name: Name of the option, for messages.
        port: The port; 0 takes any free one, None holds none.

    Yields:
        The port.

    Raises:
        PortInUseError: Somebody listens there; names the port.
        ConfigError: `port` is no port, or `host` none of this machine.
    """
    if port is None:
        yield None
        return
    check_value(name, port, Port)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as alone, socket.socket(family) as held:
        try:
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind((host, port))
            alone.close()
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            # Connections that a server before has closed stay with the kernel for a minute; the
            # option is taken back, for with it others could bind the port, too.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind((host, port))
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        except (OSError, UnicodeError) as error:
            raise listen_error(name.replace("_", " "), host, port, error) from error
        yield held.getsockname()[1]
