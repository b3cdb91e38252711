"""The connection of another worker: requests of its clients, metrics and pages."""

from __future__ import annotations

import time

from bray_core.errors import CodecError, ServiceError
from bray_server.hosting.connection import ServerContext
from bray_server.hosting.group import PAGE_KEY
from bray_server.hosting.tcp import TcpConnection
from bray_server.sessions.page_streams import PageStream
from bray_server.sessions.pages import PAGE, PageReply, PageRequest
from bray_server.sessions.pending_request import PendingRequest
from bray_server.wire.frames import Frame, FrameParser, Kind

_PAGE_HEAD_BYTES = 64 * 1024
"""Bytes by which the request for a page may be longer than its body."""


class WorkerConnection(TcpConnection):
    """Answers another worker. Pages that it forwards are answered here or not at all."""

    def __init__(self, host: ServerContext) -> None:
        super().__init__(host, is_worker=True)
        limits = host.limits
        most = limits.max_body_bytes + limits.max_header_bytes + _PAGE_HEAD_BYTES
        self._parser = FrameParser(most, limits.max_session_bytes)

    def _control(self, frame: Frame) -> None:
        kind, _, request_id, session, body = frame
        if kind != Kind.PING or not session.startswith(PAGE_KEY):
            super()._control(frame)
            return
        try:
            request = PageRequest.from_bytes(body)
        except (CodecError, LookupError) as error:
            self._refuse(request_id, "bad_frame", f"expected a page's request: {error}")
            return
        self.num_under_way += 1
        self._put((self, PAGE, session, request, request_id, time.monotonic()))

    def reply(
        self, item: PendingRequest, reply: bytes | PageReply | PageStream | ServiceError
    ) -> None:
        """Send the answer to a request that was put into the dispatcher."""
        if isinstance(reply, PageStream):
            reply = ServiceError("service_error", "a page in pieces cannot go by another worker")
        super().reply(item, reply.to_bytes() if isinstance(reply, PageReply) else reply)
