"""A queue of segments: each is used once, in batches ready to train on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bray_buffer import storage
from bray_buffer.config import BufferConfig
from bray_buffer.iterable_buffer import IterableBuffer
from bray_buffer.queue.segment_queue import SegmentQueue
from bray_buffer.queue.segment_ring import snapshot
from bray_buffer.saved_state import first_state
from bray_buffer.segment_rows import as_layout, as_rows
from bray_buffer.transform import Transform
from bray_buffer.waitable_lock import WaitableLock
from bray_core.errors import DeadlineError, SpecError
from bray_core.layout import Block, Layout, Packed
from bray_core.nested import Nested


class Buffer(IterableBuffer):
    """A bounded first-in-first-out queue. Thread-safe.

    Args:
        layout: Packed layout of one segment, or its spec.
        config: Settings: batch size, capacity, what happens when the queue is full.
        transform: Function that every batch goes through, leaves `[B, …]` → `[B', …]`; see
            `bray_buffer.transform`.

    Examples:
        >>> import numpy as np
        >>> from bray_core import nested
        >>> segment = {"observation": np.zeros((8, 4), np.float32), "length": np.array(8)}
        >>> buffer = Buffer(nested.spec(segment), BufferConfig(batch_size=2))
        >>> buffer.push(segment, segment)
        2
        >>> buffer.pop().tree["observation"].shape
        (2, 8, 4)
    """

    def __init__(
        self,
        layout: Layout | Nested,
        config: BufferConfig,
        transform: Callable[[Nested], Nested] | None = None,
    ) -> None:
        self._layout = as_layout(layout)
        self._config = config
        self._queue = SegmentQueue(self._layout, config)
        self._transform = transform and Transform(transform, self._queue.batch_layout)
        self._lock = WaitableLock("buffer")

    @property
    def layout(self) -> Layout:
        """The packed layout of one segment."""
        return self._layout

    @property
    def batch_layout(self) -> Layout:
        """The packed layout of a batch's rows: of a segment, with its mask, transformed."""
        return self._transform.layout if self._transform else self._queue.batch_layout

    @property
    def max_batch_rows(self) -> int:
        """Rows of the largest batch, as one of zeros shows."""
        rows = self._config.batch_size or self._config.capacity
        return self._transform.num_rows(rows) if self._transform else rows

    def push(
        self, *segments: Packed | Nested, wait: bool = False, timeout_s: float | None = None
    ) -> int:
        """Add segments and return how many were taken, from the first on.

        Args:
            segments: Segments, packed or nested arrays of the buffer's spec.
            wait: Whether to wait for room, with `when_full="block"`; otherwise segments that find
                no room are not taken, and the caller keeps them.
            timeout_s: Longest wait; None waits until the buffer is closed.

        Raises:
            SpecError: a segment does not fit; nothing of this call was added.
            DeadlineError: no room within `timeout_s`; the message says how many were taken before.
            ClosedError: the buffer was closed.
        """
        blocks = self._blocks(segments)
        taken = self._push_now(blocks)
        if not blocks or not self._waits(wait):
            return taken
        left = _count(blocks)
        done = self._lock.wait_for(partial(self._add, blocks), timeout_s)
        return self._waited(done, taken + left, blocks, timeout_s)

    async def push_async(
        self, *segments: Packed | Nested, wait: bool = False, timeout_s: float | None = None
    ) -> int:
        """`push` for a coroutine; one that is cancelled while it waits has pushed a part."""
        blocks = self._blocks(segments)
        taken = self._push_now(blocks)
        if not blocks or not self._waits(wait):
            return taken
        left = _count(blocks)
        done = await self._lock.wait_for_async(partial(self._add, blocks), timeout_s)
        return self._waited(done, taken + left, blocks, timeout_s)

    def _blocks(self, segments: Any) -> list[Block]:
        """Return the blocks `[b, nbytes]` of segments, all checked."""
        blocks = [as_rows(self._layout, segment) for segment in segments]
        for block in blocks:
            self._queue.check(block)
        return blocks

    def _waits(self, wait: bool) -> bool:
        return wait and self._config.when_full == "block"

    def _push_now(self, blocks: list[Block]) -> int:
        """Add what finds room and return how many that were; `blocks` keeps the rest."""
        with self._lock.mutex:
            self._lock.check_open()
            before = _count(blocks)
            if self._add(blocks):
                return before
            left = _count(blocks)
            if self._config.when_full == "drop_newest":
                self._queue.count_dropped(left)
            return before - left

    def _add(self, blocks: list[Block]) -> bool | None:
        """Move what finds room from `blocks` into the queue; True if that was all."""
        is_changed = False
        while blocks:
            count = self._queue.add(blocks[0])
            is_changed = is_changed or count > 0
            if count < len(blocks[0]):
                blocks[0] = blocks[0][count:]
                break
            del blocks[0]
        if is_changed:
            self._lock.notify()
        return None if blocks else True

    def _waited(
        self, done: bool | None, total: int, blocks: list[Block], timeout_s: float | None
    ) -> int:
        if not done:
            raise DeadlineError(
                f"buffer: push found no room in time ({timeout_s:g} s): {total - _count(blocks)} "
                f"of {total} segments were accepted: the trainer does not keep up"
            )
        return total

    def set_policy_version(self, version: int) -> None:
        """Say which policy version is the newest; drops what `max_policy_lag` makes stale."""
        with self._lock.mutex:
            if self._queue.set_version(version):
                self._lock.notify()

    def pop(self, timeout_s: float | None = None) -> Packed:
        """Return the next batch: whole segments in the order of their arrival, `[B, nbytes]`.

        Raises:
            DeadlineError: no batch within `timeout_s`.
            ClosedError: the buffer was closed.
            SpecError: the transform failed; this batch is gone, the next pop goes on.
        """
        return self._finish(self._lock.wait_for(self._take, timeout_s), timeout_s)

    async def pop_async(self, timeout_s: float | None = None) -> Packed:
        """`pop` for a coroutine; one that is cancelled leaves the batch in the queue."""
        return self._finish(await self._lock.wait_for_async(self._take, timeout_s), timeout_s)

    def _take(self) -> Block | None:
        block = self._queue.take()
        if block is not None:
            self._lock.notify()
        return block

    def _finish(self, block: Block | None, timeout_s: float | None) -> Packed:
        if block is None:
            raise DeadlineError(
                f"buffer: no batch within {timeout_s:g} s: {self._queue.progress()}"
            )
        return Packed(self.batch_layout, self._transform(block) if self._transform else block)

    def stats(self) -> dict[str, float]:
        """Return segments `pushed`, `popped` and `dropped` so far, and `queued` now.

        Where batches are by steps, also `queued_steps`; with `max_policy_lag`, also `stale`.
        """
        with self._lock.mutex:
            return self._queue.stats()

    def save(self, path: Path) -> None:
        """Write what is queued to a file, whole or not at all.

        Pushes and pops go on meanwhile: what they add is not in the file, what they take may be.
        """
        storage.save(path, self._layout, snapshot(self._queue.ring, self._lock.mutex))

    def load(self, path: Path) -> int:
        """Push what `save` wrote and return how many segments were accepted.

        Raises:
            NotFoundError: the file is missing.
            SpecError: the file is broken, or holds another layout; the message says how.
        """
        _, _, chunks = storage.load(path, self._layout)
        return sum(self.push(Packed(self._layout, chunk)) for chunk in chunks)

    def state_dict(self) -> dict[str, Any]:
        """Return the state beside the content: the newest policy version."""
        return {"policy_version": self._queue.version}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict`.

        Raises:
            SpecError: the state is another kind of buffer's.
        """
        own = first_state(state)
        if "workers" in state and not own:
            return  # a queue on Ray keeps none: who publishes tells it the version
        version = own.get("policy_version")
        if not isinstance(version, int):
            raise SpecError(f"buffer: expected a state with policy_version, got {sorted(state)}")
        self.set_policy_version(version)

    def close(self) -> None:
        """Wake every waiter with ClosedError and refuse further use."""
        self._lock.close()


def _count(blocks: list[Block]) -> int:
    return sum(map(len, blocks))
