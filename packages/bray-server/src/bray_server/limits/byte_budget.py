"""One budget for the bytes of large requests and replies that a server holds at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from bray_core.errors import ServiceError

UNCOUNTED_BYTES = 64 * 1024
"""Size up to which a body is not counted: limits of requests and connections bound those."""
_MAX_WAITING = 64
"""Number of connections that may wait for room; others are refused."""


class WaitingReceiver(Protocol):
    """A connection that waits until its request may be received."""

    def admitted(self) -> None:
        """Read on: there is room now."""
        ...


class ByteBudget:
    """Counts bytes in flight: bodies on their way in or answered now, replies not yet sent.

    A body is counted with its whole length before it is received, so that an admitted request can
    always be completed. Where nothing else is in flight a body of any size is admitted: large ones
    then go one after the other.

    Args:
        max_bytes: Bytes beyond which large bodies wait, and large replies are refused.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._waiting: deque[tuple[WaitingReceiver, int]] = deque()
        self.used_bytes = 0
        self._peak_bytes = 0

    def begin(self, receiver: WaitingReceiver, num_bytes: int) -> bool:
        """Count a body that is about to be received; if False, stop reading until `admitted`.

        Raises:
            ServiceError: `overloaded`: too many wait already.
        """
        if not self._waiting and self.fits(num_bytes):
            self.count(num_bytes)
            return True
        if len(self._waiting) >= _MAX_WAITING:
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

    def count(self, num_bytes: int) -> None:
        """Count bytes, whether there is room or not."""
        self.used_bytes += num_bytes
        self._peak_bytes = max(self._peak_bytes, self.used_bytes)

    def give(self, num_bytes: int) -> None:
        """Give counted bytes back."""
        self.used_bytes -= num_bytes
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

    def _admit_waiting(self) -> None:
        while self._waiting and self.fits(self._waiting[0][1]):
            receiver, num_bytes = self._waiting.popleft()
            self.count(num_bytes)
            asyncio.get_running_loop().call_soon(receiver.admitted)
