"""Requests of a session that may be sent again, so that one turn never becomes two.

The official clients send a request again by themselves where the connection was lost or the answer
was 408, 409, 429 or 5xx; they mark it by the header `x-stainless-retry-count` and nothing else.
Such a request gets the answer to the same body that came before, or waits for it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from hashlib import blake2b

from bray_model.chat.outcomes import Answered

_MOST_ANSWERED = 4
"""Number of answered requests that are remembered in a session. Clients send a request again within
seconds."""


class Attempt:
    """A request and what becomes of it."""

    def __init__(self, digest: bytes) -> None:
        self.digest = digest
        self.outcome: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self.num_clients = 1
        """Number of clients that wait for the outcome."""
        self.task: asyncio.Task[None] | None = None
        """What works on it, where that outlives its client."""
        self.is_recorded = False
        """Whether its answer became a turn of the session: it does once a client gets it."""
        self.is_left = False
        """Whether it has no answer because it was streamed to a client that left."""

    @property
    def is_settled(self) -> bool:
        """Whether it has an outcome that is kept only for a request that is sent again."""
        return self.outcome.done() and (self.is_recorded or self.is_abandoned)

    def fail(self, error: BaseException) -> None:
        """Tell whoever waits that there is no outcome."""
        if not self.outcome.done():
            self.outcome.set_exception(error)
            self.outcome.exception()  # perhaps nobody waits

    @property
    def is_abandoned(self) -> bool:
        """Whether no client waits for it, or got it."""
        return self.num_clients == 0


class Attempts:
    """The last requests of a session."""

    def __init__(self) -> None:
        self._last: OrderedDict[Attempt, None] = OrderedDict()

    def begin(self, digest: bytes) -> Attempt:
        """Remember a request that is worked on from now on."""
        attempt = Attempt(digest)
        self._settle()
        self._last[attempt] = None
        return attempt

    def _settle(self) -> None:
        """Forget all but the last of the requests that are answered, or that nobody waits for."""
        answered = [attempt for attempt in self._last if attempt.is_settled]
        for attempt in answered[:-_MOST_ANSWERED]:
            del self._last[attempt]

    def find(self, digest: bytes) -> Attempt | None:
        """Return the request that is sent again: one that its client left, else the newest."""
        same = [attempt for attempt in self._last if attempt.digest == digest]
        return next((one for one in same if one.is_abandoned), same[-1] if same else None)

    def forget(self, attempt: Attempt, error: BaseException) -> None:
        """Forget a request that failed, not one that is answered: sent again, it is made anew."""
        if attempt.outcome.done() and attempt.outcome.exception() is None:
            return
        self._last.pop(attempt, None)
        attempt.fail(error)

    def end(self, *, also_awaited: bool = False) -> None:
        """End what is worked on for nobody, or all that is worked on."""
        for attempt in self._last:
            if attempt.task is not None and (also_awaited or attempt.is_abandoned):
                attempt.task.cancel()


def digest_of(kind: str, body: bytes) -> bytes:
    """Return the digest of a request, by which it is known when it comes again."""
    return blake2b(kind.encode() + b" " + body, digest_size=16).digest()
