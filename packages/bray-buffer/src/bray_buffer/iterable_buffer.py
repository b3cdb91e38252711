"""Iterating over a buffer: its batches until it is closed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator

from bray_core.errors import ClosedError
from bray_core.layout import Packed


class IterableBuffer(ABC):
    """Makes a buffer iterable by its `pop` and `pop_async`."""

    @abstractmethod
    def pop(self, timeout_s: float | None = None) -> Packed:
        """Return the next batch."""

    @abstractmethod
    async def pop_async(self, timeout_s: float | None = None) -> Packed:
        """Return the next batch; the event loop goes on meanwhile."""

    def __iter__(self) -> Iterator[Packed]:
        """Yield batches until the buffer is closed or exhausted."""
        while True:
            try:
                yield self.pop()
            except ClosedError:
                return

    async def __aiter__(self) -> AsyncIterator[Packed]:
        """Yield batches until the buffer is closed or exhausted."""
        while True:
            try:
                yield await self.pop_async()
            except ClosedError:
                return
