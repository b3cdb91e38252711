"""Iterating over a buffer: its batches until it is closed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Protocol

from bray_core.errors import ClosedError
from bray_core.layout import Packed


class _Popped(Protocol):
    def pop(self, timeout_s: float | None = None) -> Packed: ...


class _PoppedAsync(Protocol):
    async def pop_async(self, timeout_s: float | None = None) -> Packed: ...


def batches(buffer: _Popped) -> Iterator[Packed]:
    """Yield batches until the buffer is closed or exhausted."""
    while True:
        try:
            yield buffer.pop()
        except ClosedError:
            return


async def batches_async(buffer: _PoppedAsync) -> AsyncIterator[Packed]:
    """Yield batches until the buffer is closed or exhausted."""
    while True:
        try:
            yield await buffer.pop_async()
        except ClosedError:
            return
