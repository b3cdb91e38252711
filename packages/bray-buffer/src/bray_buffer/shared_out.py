"""Several buffers as one that is pushed into: each segment goes to one of them, by shares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bray_core.errors import ConfigError
from bray_core.layout import Layout, Packed
from bray_core.nested import Nested
from bray_core.protocols import BufferProtocol


class SharedOut:
    """Pushes each segment to the buffer whose share is furthest behind; nothing is drawn.

    A copy in another process shares its own segments out.

    Args:
        buffers: Buffers by name, each with its share above 0; shares need not add up to 1. All take
            segments of one layout.

    Raises:
        ConfigError: there are fewer than two, a share is not above 0, or layouts differ.
    """

    def __init__(self, buffers: Mapping[str, tuple[BufferProtocol, float]]) -> None:
        if len(buffers) < 2:
            raise ConfigError(f"buffers: expected two or more, got {len(buffers)}")
        for name, (_, share) in buffers.items():
            if not 0 < share < math.inf:
                raise ConfigError(f"{name}: expected a share above 0, got {share}")
        self._given = dict(buffers)
        total = sum(share for _, share in buffers.values())
        self._buffers: dict[str, Any] = {name: buffer for name, (buffer, _) in buffers.items()}
        self._shares = {name: share / total for name, (_, share) in buffers.items()}
        self._owed = dict.fromkeys(buffers, 0.0)
        first, *others = self._buffers.values()
        for other in others:
            if other.layout != first.layout:
                raise ConfigError(
                    f"buffers: expected segments of one layout, got {first.layout.id} and "
                    f"{other.layout.id}"
                )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the buffers, handles of processes of their own, and their shares."""
        return SharedOut, (self._given,)

    @property
    def layout(self) -> Layout:
        """The packed layout of a segment."""
        layout: Layout = next(iter(self._buffers.values())).layout
        return layout

    def _turn(self) -> Any:
        """Return the buffer that the next segment goes to."""
        for name, share in self._shares.items():
            self._owed[name] += share
        chosen = max(self._owed, key=lambda name: self._owed[name])
        self._owed[chosen] -= 1.0
        return self._buffers[chosen]

    def push(
        self, *segments: Packed | Nested, wait: bool = False, timeout_s: float | None = None
    ) -> int:
        """Add segments, one after the other, and return how many were accepted."""
        pushed = (self._turn().push(one, wait=wait, timeout_s=timeout_s) for one in segments)
        return sum(int(number) for number in pushed)

    async def push_async(
        self, *segments: Packed | Nested, wait: bool = False, timeout_s: float | None = None
    ) -> int:
        """`push` for a coroutine."""
        number = 0
        for one in segments:
            number += int(await self._turn().push_async(one, wait=wait, timeout_s=timeout_s))
        return number

    def stats(self) -> dict[str, float]:
        """Return the figures of all together, such as how many steps are `queued`."""
        found: dict[str, float] = {}
        for buffer in self._buffers.values():
            for name, value in buffer.stats().items():
                found[name] = found.get(name, 0.0) + float(value)
        return found
