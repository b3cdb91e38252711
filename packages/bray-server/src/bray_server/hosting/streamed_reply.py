"""Sending a page in pieces over one HTTP connection."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Protocol

from bray_core.errors import ServiceError
from bray_server.limits.limits import Limits
from bray_server.sessions.page_streams import PageStream

_LAST_CHUNK = b"0\r\n\r\n"


class StreamTarget(Protocol):
    """A connection, as the sender of a streamed page sees it."""

    limits: Limits
    is_blocked: bool

    def write(self, data: bytes) -> None:
        """Send data."""
        ...


class StreamedReply:
    """Sends the chunks of a page no faster than its client reads them.

    Args:
        target: The connection.
        stream: What is sent.
        is_chunked: Whether to mark the pieces as HTTP/1.1 does. Over HTTP/1.0 the body ends with
            the connection.
    """

    def __init__(self, target: StreamTarget, stream: PageStream, *, is_chunked: bool) -> None:
        self.stream = stream
        self._target = target
        self._is_chunked = is_chunked
        self._writable = asyncio.Event()

    def resume(self) -> None:
        """Go on: the client reads again."""
        self._writable.set()

    async def send(self) -> None:
        """Send all chunks, and what marks their end.

        Raises:
            ServiceError: `deadline`: a chunk or the whole took too long; `overloaded`: the body is
                longer than the limit; or what the generator raised.
        """
        limits, now = self._target.limits, asyncio.get_running_loop().time
        last_s = now() + limits.stream_timeout_s
        try:
            async with asyncio.timeout_at(last_s) as deadline, aclosing(self.stream.chunks) as all:
                while True:
                    deadline.reschedule(min(last_s, now() + limits.tick_timeout_s))
                    chunk = await anext(all, None)
                    if chunk is None:
                        break
                    self._put(chunk)
                    if self._target.is_blocked:
                        deadline.reschedule(last_s)
                        self._writable.clear()
                        await self._writable.wait()
        except TimeoutError:
            if not deadline.expired():
                raise
            is_whole = now() >= last_s
            most_s = limits.stream_timeout_s if is_whole else limits.tick_timeout_s
            what = "end of the answer" if is_whole else "further piece of the answer"
            raise ServiceError("deadline", f"no {what} within {most_s:g} s") from None
        self.finish()

    def fail(self, error: ServiceError) -> bool:
        """Say to the client what went wrong; False if the page has no words for it."""
        if self.stream.error_chunk is None:
            return False
        self._write(self.stream.error_chunk(error))
        self.finish()
        return True

    def finish(self) -> None:
        """Mark the end of the body."""
        if self._is_chunked:
            self._target.write(_LAST_CHUNK)

    def _put(self, chunk: bytes) -> None:
        limit = self._target.limits.max_stream_bytes
        if self.stream.sent_bytes + len(chunk) > limit:
            raise ServiceError("overloaded", f"the answer exceeds the limit of {limit} bytes")
        self._write(chunk)

    def _write(self, chunk: bytes) -> None:
        if not chunk:  # an empty piece would mark the end
            return
        self.stream.sent_bytes += len(chunk)
        self._target.write(b"%x\r\n%b\r\n" % (len(chunk), chunk) if self._is_chunked else chunk)
