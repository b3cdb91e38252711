"""One process's connections to the inference workers of a model, and the choice among them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import random
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from bray_core.errors import BrayError, ClosedError, DeadlineError, ServiceError, WorkerLostError
from bray_core.process.event_loop import EventLoopThread
from bray_core.remote.load_balancing import LoadBalancer
from bray_model.distributed.row_messages import decode_reply, encode_order
from bray_server import AsyncClient

_GONE = ("unreachable", "connection_lost", "unauthorized", "draining")
"""Errors of a worker that is no more; another process may listen there by now."""
_ANSWER_S = 60.0
_GRACE_S = 5.0
_MAX_SESSIONS = 100_000

logger = logging.getLogger(__name__)

T = TypeVar("T")
Locate = Callable[[int], str]
"""Return the address of a worker; blocks while a worker that died is being replaced, and raises
WorkerLostError where it is not, in time or ever."""


class _NotReplacedError(WorkerLostError):
    """A worker died, and none took its place in time."""


class InferenceLoadBalancer:
    """Sends each request to the less loaded of two workers, over one connection to each.

    A request whose worker dies is sent once more, to another worker or to the one that takes its
    place: to compute twice does no harm. The connections live on an event loop in a thread of
    their own, so that callers on any loop, or none, share them.

    Args:
        name: Name of the model, for messages.
        size: Number of inference workers.
        locate: Returns the address of a worker.
        token: Token that the workers ask for.
        timeout_s: Longest time of one answer in seconds; None: a minute.
    """

    def __init__(
        self, name: str, size: int, locate: Locate, token: str, timeout_s: float | None
    ) -> None:
        self._name = name
        self._size = size
        self._locate = locate
        self._token = token
        self._timeout_s = (timeout_s or _ANSWER_S) + _GRACE_S
        self._thread = EventLoopThread(f"bray-model-{name}-workers")
        # All but the lock belongs to that loop.
        self._clients: dict[int, AsyncClient] = {}
        self._opening = [asyncio.Lock() for _ in range(size)]
        self._in_flight: Counter[int] = Counter()
        self._away: set[int] = set()
        self._owners = LoadBalancer(size)
        self._sessions: OrderedDict[str, AsyncClient] = OrderedDict()
        """Session → the connection that its first call took: another one is another worker's."""
        self._lock = threading.Lock()
        self._sequence = 0
        self._version: int | None = None

    @property
    def sequence(self) -> int:
        """Sequence of the newest weights that this process has seen: none older may answer it."""
        return self._sequence

    @property
    def version(self) -> int:
        """Version of the newest weights that this process has seen."""
        if self._version is None:
            self.run(self.wait(0, None))
        assert self._version is not None
        return self._version

    def saw(self, sequence: int, version: int) -> None:
        """Note weights that were published, or that answered."""
        with self._lock:
            if self._version is None or sequence >= self._sequence:
                self._sequence, self._version = sequence, version

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run one of the coroutines below from a thread without an event loop."""
        try:
            return self._thread.run(work)
        except concurrent.futures.CancelledError:
            raise self._closed_error() from None

    async def elsewhere(self, work: Coroutine[Any, Any, T]) -> T:
        """Await one of the coroutines below on any event loop."""
        future = self._thread.submit(work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # the caller was cancelled, and the request with it
            raise self._closed_error() from None

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"model {self._name!r}: closed")

    async def ask(self, body: bytes) -> dict[str, Any]:
        """Let a worker answer.

        Raises:
            WorkerLostError: The worker died, and then the one that was asked instead.
            DeadlineError: No answer came in time.
            Exception: Whatever the request failed with there.
        """
        first = self._choose()
        try:
            return decode_reply(await self._ask(first, body, self._timeout_s))
        except WorkerLostError as error:
            logger.warning("model %s: %s; asking again", self._name, error)
        return decode_reply(await self._ask(self._choose(), body, self._timeout_s))

    async def ask_owner(self, session: str, body: bytes) -> dict[str, Any]:
        """Let the worker answer that owns the state of a session; nothing is sent twice.

        Raises:
            WorkerLostError: The worker died, and the state with it; the next call begins anew.
            Exception: Whatever `ask` raises.
        """
        index = self._owners.choose("hash", session)
        try:
            return decode_reply(await self._ask(index, body, self._timeout_s, session))
        except WorkerLostError as error:
            self._sessions.pop(session, None)
            raise WorkerLostError(
                f"{error}, and with it the state of session {session.partition('/')[2]!r}: its "
                "next call begins with zeros"
            ) from error

    def _check_owner(self, index: int, session: str, client: AsyncClient) -> None:
        if self._sessions.setdefault(session, client) is not client:
            raise WorkerLostError(f"model {self._name!r}: inference worker {index} died")
        while len(self._sessions) > _MAX_SESSIONS:  # those that nobody ended
            self._sessions.popitem(last=False)

    def end_session(self, session: str, body: bytes) -> None:
        """Tell the worker that has a session's state, without waiting for it."""
        self._thread.submit(self._end_session(session, body))

    async def _end_session(self, session: str, body: bytes) -> None:
        if self._sessions.pop(session, None) is None:
            return
        try:
            await self._ask(self._owners.choose("hash", session), body, self._timeout_s)
        except BrayError as error:  # then the state is gone too
            logger.info("model %s: %s", self._name, error)

    async def wait(self, version: int, timeout_s: float | None) -> int:
        """Wait until a worker has reached `version`; return which it has.

        Raises:
            WorkerLostError: No worker lives, and the one that was asked was not replaced.
            DeadlineError: The version did not come in time.
        """
        body = encode_order(wait=version, timeout_s=timeout_s)
        limit_s = 86_400.0 if timeout_s is None else timeout_s + self._timeout_s
        while True:
            try:
                reply = decode_reply(await self._ask(self._choose(), body, limit_s))
                break
            except WorkerLostError as error:
                if isinstance(error, _NotReplacedError) and len(self._away) == self._size:
                    raise
                logger.info("model %s: %s; waiting at another", self._name, error)
            except DeadlineError:
                if timeout_s is not None:
                    raise
        self.saw(reply["sequence"], reply["version"])
        return int(reply["version"])

    async def tell_all(self, body: bytes) -> None:
        """Send something to every worker that lives."""
        for index in range(self._size):
            if index not in self._away:
                try:
                    await self._ask(index, body, self._timeout_s)
                except BrayError as error:
                    logger.info("model %s: %s", self._name, error)

    def _choose(self) -> int:
        """Return the less loaded of two, among those that live if any does."""
        live = [index for index in range(self._size) if index not in self._away]
        among = live or list(range(self._size))
        return min(random.sample(among, min(2, len(among))), key=lambda i: self._in_flight[i])

    async def _ask(
        self, index: int, body: bytes, timeout_s: float, session: str | None = None
    ) -> bytes:
        self._in_flight[index] += 1
        client = None
        try:
            async with asyncio.timeout(timeout_s):
                client = await self._client(index)
                if session is not None:
                    self._check_owner(index, session, client)
                return await client.call(body)
        except DeadlineError:
            raise
        except TimeoutError:
            raise DeadlineError(f"model {self._name!r}: no answer within {timeout_s:g} s") from None
        except ServiceError as error:
            if error.code not in _GONE:
                raise
            await self._forget(index, client)
            raise WorkerLostError(
                f"model {self._name!r}: inference worker {index} died: {error.message}"
            ) from error
        finally:
            self._in_flight[index] -= 1

    async def _client(self, index: int) -> AsyncClient:
        async with self._opening[index]:
            if index not in self._clients:
                try:
                    address = await asyncio.to_thread(self._locate, index)
                except WorkerLostError as error:
                    self._away.add(index)
                    raise _NotReplacedError(str(error)) from error
                self._clients[index] = await AsyncClient.connect(
                    address, self._token, timeout_s=86_400.0
                )
                self._away.discard(index)
            return self._clients[index]

    async def _forget(self, index: int, client: AsyncClient | None) -> None:
        if self._clients.get(index) is client:
            self._away.add(index)
            self._clients.pop(index, None)
            if client is not None:
                await client.close()

    def close(self) -> None:
        """Close the connections; again is harmless."""
        try:
            self._thread.run(self._close(), timeout_s=_GRACE_S)
        except BrayError as error:
            logger.debug("model %s: %s", self._name, error)
        self._thread.stop()

    async def _close(self) -> None:
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.close()
