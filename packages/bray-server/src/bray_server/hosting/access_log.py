"""The access log: one JSON line per request, where it is asked for."""

from __future__ import annotations

import json
import logging

from bray_core.errors import ServiceError
from bray_server.sessions.page_streams import PageStream
from bray_server.sessions.pages import PageReply
from bray_server.sessions.server_metrics import KINDS

logger = logging.getLogger("bray_server.access")


def log_request(
    *,
    peer: str,
    request_id: str,
    kind: int,
    session: bytes,
    path: str,
    received_bytes: int,
    reply: bytes | PageReply | PageStream | ServiceError,
    elapsed_s: float,
) -> None:
    """Write a request and its outcome to the logger `bray_server.access`, at level INFO."""
    failed = isinstance(reply, ServiceError)
    line = {
        "peer": peer,
        "request_id": request_id,
        "kind": KINDS[kind],
        "session": session.decode(errors="replace"),
        "received_bytes": received_bytes,
        "sent_bytes": 0 if failed else len(reply),  # type: ignore[arg-type]
        "code": reply.code if isinstance(reply, ServiceError) else "ok",
        "elapsed_ms": round(elapsed_s * 1e3, 3),
    }
    if path:
        line["path"] = path
    text = json.dumps(line, ensure_ascii=False)
    logger.info("%s", text if text.isprintable() else json.dumps(line))
