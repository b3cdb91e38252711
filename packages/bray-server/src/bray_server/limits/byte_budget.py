"""One budget for the bytes of large requests and replies that a server holds at a time."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from typing import Protocol

from bray_core.errors import ServiceError

UNCOUNTED_BYTES = 64 * 1024
"""Size up to which a body is not counted: limits of requests and connections bound those."""
_MAX_WAITING = 64
"""Number of connections that may wait for room; others are refused."""


class WaitingReceiver(Protocol):
    """A connection that waits until its request may be received."""

    client: str
    """Address of the client, by which its share is counted; empty: no limit."""

    def admitted(self) -> None:
        """Read on: there is room now."""
        ...


class ByteBudget:
    """Counts bytes in flight: bodies on their way in or answered now, replies not yet sent.

    A body is counted with its whole length before it is received, so that an admitted request can
    always be completed. Where nothing else is in flight a body of any size is admitted: large ones
    then go one after the other. A client that announces many bodies, and sends none, has its share
    only: others go on.

    Args:
        max_bytes: Bytes beyond which large bodies wait, and large replies are refused.
        share: Part of them beyond which further bodies of one client wait, and part of the places
            to wait that one client may have.
    """

    def __init__(self, max_bytes: int, share: float = 1.0) -> None:
        self._max_bytes = max_bytes
        self._max_client_bytes = math.ceil(max_bytes * share)
        self._max_client_waiting = math.ceil(_MAX_WAITING * share)
        self._of_clients: Counter[str] = Counter()
        """Bytes in flight of each client that has some."""
        self._waiting: deque[tuple[WaitingReceiver, int]] = deque()
        self.used_bytes = 0
        self._peak_bytes = 0

    def begin(self, receiver: WaitingReceiver, num_bytes: int) -> bool:
        """Count a body that is about to be received; if False, stop reading until `admitted`.

        Raises:
            ServiceError: `overloaded`: too many wait already.
        """
        client = receiver.client
        is_next = not any(self._has_share(other.client, size) for other, size in self._waiting)
        if is_next and self._has_share(client, num_bytes) and self.fits(num_bytes):
            self.count(num_bytes, client)
            return True
        num_mine = sum(other.client == client for other, _ in self._waiting) if client else 0
        if len(self._waiting) >= _MAX_WAITING or num_mine >= self._max_client_waiting:
            raise self.overloaded(num_bytes)
        self._waiting.append((receiver, num_bytes))
        return False

    def leave(self, receiver: WaitingReceiver) -> None:
        """Stop waiting for room."""
        self._waiting = deque(entry for entry in self._waiting if entry[0] is not receiver)
        self._admit_waiting()

    def fits(self, num_bytes: int, own_bytes: int = 0) -> bool:
        """Return whether there is room for more bytes, or only `own_bytes` are in flight."""
        used = self.used_bytes
        return used + num_bytes <= self._max_bytes or used <= own_bytes

    def count(self, num_bytes: int, client: str = "") -> None:
        """Count bytes, whether there is room or not.

        Args:
            num_bytes: Number of bytes.
            client: The client whose they are; empty: nobody's share.
        """
        self.used_bytes += num_bytes
        self._peak_bytes = max(self._peak_bytes, self.used_bytes)
        if client:
            self._of_clients[client] += num_bytes

    def give(self, num_bytes: int, client: str = "") -> None:
        """Give counted bytes back; the arguments are those of `count`."""
        self.used_bytes -= num_bytes
        if client:
            self._of_clients[client] -= num_bytes
            if not self._of_clients[client]:
                del self._of_clients[client]
        if self._waiting:
            self._admit_waiting()

    def take_peak(self) -> int:
        """Return the largest number of bytes in flight since the last call."""
        peak, self._peak_bytes = self._peak_bytes, self.used_bytes
        return peak

    def overloaded(self, num_bytes: int) -> ServiceError:
        """Return the error for a request that finds no room."""
        return ServiceError(
            "overloaded",
            f"no room for {num_bytes} bytes: {self.used_bytes} of {self._max_bytes} are in flight",
        )

    def _has_share(self, client: str, num_bytes: int) -> bool:
        """Return whether a client may have more bytes in flight; it may always have one body."""
        used = self._of_clients.get(client, 0)
        return not used or used + num_bytes <= self._max_client_bytes

    def _admit_waiting(self) -> None:
        """Admit in order; those whose client has its share go to the end."""
        passed_over: deque[tuple[WaitingReceiver, int]] = deque()
        while self._waiting:
            receiver, num_bytes = self._waiting[0]
            has_share = self._has_share(receiver.client, num_bytes)
            if has_share and not self.fits(num_bytes):
                break
            entry = self._waiting.popleft()
            if not has_share:
                passed_over.append(entry)
                continue
            self.count(num_bytes, receiver.client)
            asyncio.get_running_loop().call_soon(receiver.admitted)
        self._waiting.extend(passed_over)
