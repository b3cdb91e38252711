"""The admin port of `bray serve`, where one is asked for."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bray_model.serving.admin_pages import Publish

_MAX_WEIGHTS_BYTES = 4 * 1024**3


@contextlib.contextmanager
def admin_port(
    options: argparse.Namespace, publish: Publish, security: Mapping[str, Any]
) -> Iterator[list[str]]:
    """Serve the admin port, if one is asked for; yields its address."""
    if options.admin_port is None:
        yield []
        return
    from bray_model.serving.admin_pages import AdminPages, NoService
    from bray_server import Limits, ServerThread

    server = ServerThread(
        NoService("this port takes PUT /models/NAME/weights"),
        host=options.host,
        tcp_port=None,
        http_port=options.admin_port,
        pages=AdminPages(publish, host=options.host, has_token=bool(security["tokens"])),
        limits=Limits(max_body_bytes=_MAX_WEIGHTS_BYTES, max_connections=16),
        **security,
    )
    try:
        yield [f"{server.addresses[0]} (admin)"]
    finally:
        server.close(0.0)
