"""A queue of segments: each is used once, in batches ready to train on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from bray_buffer import storage
from bray_buffer.batching import Batcher
from bray_buffer.config import BufferConfig
from bray_buffer.gate import Gate
from bray_buffer.iteration import batches, batches_async
from bray_buffer.lag import PolicyLag
from bray_buffer.lengths import Lengths, is_scalar_length
from bray_buffer.ring import Ring, as_layout, as_rows, snapshot
from bray_buffer.transform import Transform
from bray_core import metrics
from bray_core.errors import DeadlineError, SpecError
from bray_core.layout import Block, Layout, Packed
from bray_core.nested import Nested


class Buffer:
    """A bounded first-in-first-out queue. Thread-safe.

    Args:
        layout: of one segment, or its spec.
        config: batch size, capacity, what happens when the queue is full.
        transform: a function that every batch goes through, leaves `[B, …]` → `[B', …]`; see
            `bray_buffer.transform`.

    Example:
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
        self._is_by_steps = config.batch_steps is not None
        self._lengths = _lengths(self._layout, config)
        self._lag = (
            PolicyLag(self._layout, config.max_policy_lag)
            if config.max_policy_lag is not None
            else None
        )
        self._batcher = Batcher(self._layout, mask=config.mask, without_time=config.without_time)
        self._transform = transform and Transform(transform, self._batcher.layout)
        self._ring = Ring(self._layout, config.capacity)
        self._queued_steps = 0
        self._counts = {"pushed": 0, "popped": 0, "dropped": 0}
        if self._lag:
            self._counts["stale"] = 0
        self._gate = Gate("buffer")

    @property
    def layout(self) -> Layout:
        """The packed layout of one segment."""
        return self._layout

    @property
    def batch_layout(self) -> Layout:
        """The packed layout of a batch's rows: of a segment, with its mask, transformed."""
        return self._transform.layout if self._transform else self._batcher.layout

    def push(
        self, *segments: Packed | Nested, wait: bool = False, timeout_s: float | None = None
    ) -> int:
        """Add segments and return how many were taken, from the first on.

        Args:
            segments: packed, or nested arrays of the buffer's spec.
            wait: with `when_full="block"`, wait for room; otherwise what finds no room is not
                taken, and the caller keeps it.
            timeout_s: how long to wait at most; None waits until the buffer is closed.

        Raises:
            SpecError: a segment does not fit; nothing of this call was added.
            DeadlineError: no room within `timeout_s`; says how many were taken before.
            ClosedError: the buffer was closed.
        """
        push = _Push(self._blocks(segments), self._waits(wait))
        done = self._gate.until(partial(self._offer, push), timeout_s)
        return self._taken(push, done, timeout_s)

    async def push_async(
        self, *segments: Packed | Nested, wait: bool = False, timeout_s: float | None = None
    ) -> int:
        """`push` for a coroutine; one that is cancelled while it waits has pushed a part."""
        push = _Push(self._blocks(segments), self._waits(wait))
        done = await self._gate.until_async(partial(self._offer, push), timeout_s)
        return self._taken(push, done, timeout_s)

    def offer(self, packed: Packed, timeout_s: float) -> int:
        """Push what finds room in time, and return how many segments that were."""
        push = _Push(self._blocks([packed]), self._waits(True))
        self._gate.until(partial(self._offer, push), timeout_s)
        return push.taken

    def _waits(self, wait: bool) -> bool:
        return wait and self._config.when_full == "block"

    def _blocks(self, segments: Any) -> list[Block]:
        """Return the blocks `[b, nbytes]` of segments, all checked."""
        blocks = [as_rows(self._layout, segment) for segment in segments]
        if self._lengths:
            for block in blocks:
                self._lengths.of(block)
        return blocks

    def _taken(self, push: _Push, done: int | None, timeout_s: float | None) -> int:
        if done is None:
            raise DeadlineError(
                f"buffer: push found no room in time ({timeout_s:g} s): {push.taken} of "
                f"{push.total} segments were accepted: the trainer does not keep up"
            )
        return done

    def _offer(self, push: _Push) -> int | None:
        """Add what finds room and return how many that were; None to be called again."""
        before = push.taken
        while push.blocks:
            block = push.blocks[0]
            count = self._add(block)
            push.taken += count
            if count < len(block):
                push.blocks[0] = block[count:]
                break
            del push.blocks[0]
        if push.taken > before:
            self._gate.notify()
        if push.blocks and push.waits:
            return None
        if self._config.when_full == "drop_newest":
            self._count("dropped", push.total - push.taken)
        return push.taken

    def _add(self, block: Block) -> int:
        """Add the first rows of a block, as many as there is room for, and return how many."""
        if self._lag and (stale := self._lag.is_stale(block)).any():
            return self._add_fresh(block, stale)
        capacity = self._config.capacity
        room = capacity - self._ring.size
        if len(block) <= room:
            return self._append(block)
        if self._config.when_full != "drop_oldest":
            return self._append(block[:room])
        for start in range(0, len(block), capacity):
            piece = block[start : start + capacity]
            overwritten = max(0, self._ring.size + len(piece) - capacity)
            self._remove(overwritten)
            self._count("dropped", overwritten)
            self._append(piece)
        return len(block)

    def _add_fresh(self, block: Block, stale: Any) -> int:
        """Add a block of which some rows are stale: these are taken, counted and dropped."""
        for row, is_stale in enumerate(stale):
            if is_stale:
                self._counts["pushed"] += 1
                self._count("stale", 1)
            elif not self._add(block[row : row + 1]):
                return row
        return len(block)

    def _append(self, rows: Block) -> int:
        self._ring.extend(rows)
        if self._is_by_steps:
            self._queued_steps += self._steps([rows])
        self._counts["pushed"] += len(rows)
        return len(rows)

    def _remove(self, count: int) -> None:
        if self._is_by_steps:
            self._queued_steps -= self._steps(self._ring.parts(count))
        self._ring.drop(count)

    def _steps(self, parts: list[Block]) -> int:
        """Return the sum of the segments' lengths."""
        assert self._lengths is not None
        return sum(sum(self._lengths.of(part)) for part in parts)

    def _count(self, what: str, count: int) -> None:
        if count:
            self._counts[what] += count
            metrics.record(f"buffer/{what}_segments", count, kind="count")

    def set_policy_version(self, version: int) -> None:
        """Say which policy version is the newest; drops what `max_policy_lag` makes stale."""
        if not self._lag:
            return
        with self._gate.lock:
            self._lag.version = version
            fresh = ~np.concatenate([self._lag.is_stale(p) for p in self._queued()])
            self._count("stale", int(self._ring.size - fresh.sum()))
            if not fresh.all():
                self._ring.keep(np.flatnonzero(fresh))
                if self._is_by_steps:
                    self._queued_steps = self._steps(self._queued())
                self._gate.notify()

    def _queued(self) -> list[Block]:
        return self._ring.parts(self._ring.size)

    def pop(self, timeout_s: float | None = None) -> Packed:
        """Return the next batch: whole segments in the order of their arrival, `[B, nbytes]`.

        Raises:
            DeadlineError: no batch within `timeout_s`.
            ClosedError: the buffer was closed.
            SpecError: the transform failed; this batch is gone, the next pop goes on.
        """
        return self._finish(self._gate.until(self._take, timeout_s), timeout_s)

    async def pop_async(self, timeout_s: float | None = None) -> Packed:
        """`pop` for a coroutine; one that is cancelled leaves the batch in the queue."""
        return self._finish(await self._gate.until_async(self._take, timeout_s), timeout_s)

    def _take(self) -> Block | None:
        if not self._is_ready():
            return None
        count = self._batch_count()
        block = self._batcher(self._ring.parts(count))
        self._remove(count)
        self._counts["popped"] += count
        metrics.record("buffer/queued_segments", self._ring.size, kind="last")
        self._gate.notify()
        return block

    def _finish(self, block: Block | None, timeout_s: float | None) -> Packed:
        if block is None:
            raise DeadlineError(f"buffer: no batch within {timeout_s:g} s: {self._progress()}")
        return Packed(self.batch_layout, self._transform(block) if self._transform else block)

    def _is_ready(self) -> bool:
        if self._config.batch_size is not None:
            return self._ring.size >= self._config.batch_size
        assert self._config.batch_steps is not None
        # A full queue is a batch, however short: a producer may wait for the room.
        is_full = self._ring.size == self._config.capacity
        return self._queued_steps >= self._config.batch_steps or is_full

    def _batch_count(self) -> int:
        if self._config.batch_size is not None:
            return self._config.batch_size
        assert self._config.batch_steps is not None
        assert self._lengths is not None
        most = min(self._ring.size, self._config.batch_steps)  # each has one step or more
        steps = accumulate(n for part in self._ring.parts(most) for n in self._lengths.of(part))
        return next((i for i, n in enumerate(steps, 1) if n >= self._config.batch_steps), most)

    def _progress(self) -> str:
        if self._config.batch_size is not None:
            return f"{self._ring.size} of {self._config.batch_size} segments are there"
        return f"{self._queued_steps} of {self._config.batch_steps} steps are there"

    def __iter__(self) -> Iterator[Packed]:
        """Yield batches until the buffer is closed."""
        return batches(self)

    def __aiter__(self) -> AsyncIterator[Packed]:
        """Yield batches until the buffer is closed."""
        return batches_async(self)

    def stats(self) -> dict[str, float]:
        """Return segments `pushed`, `popped` and `dropped` so far, and `queued` now.

        Where batches are by steps, also `queued_steps`; with `max_policy_lag`, also `stale`.
        """
        with self._gate.lock:
            stats: dict[str, float] = {**self._counts, "queued": self._ring.size}
            if self._is_by_steps:
                stats["queued_steps"] = self._queued_steps
            return stats

    def save(self, path: Path) -> None:
        """Write what is queued to a file, whole or not at all.

        Pushes and pops go on meanwhile: what they add is not in the file, what they take may be.
        """
        storage.save(path, self._layout, snapshot(self._ring, self._gate.lock))

    def load(self, path: Path) -> int:
        """Push what `save` wrote and return how many segments were accepted.

        Raises:
            NotFoundError: there is no such file.
            SpecError: the file is broken, or holds another layout; names how.
        """
        _, _, chunks = storage.load(path, self._layout)
        return sum(self.push(Packed(self._layout, chunk)) for chunk in chunks)

    def state_dict(self) -> dict[str, Any]:
        """Return what is to be kept beside the content: the newest policy version."""
        return {"policy_version": self._lag.version if self._lag else 0}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict`.

        Raises:
            SpecError: it is another kind of buffer's.
        """
        version = state.get("policy_version")
        if not isinstance(version, int):
            raise SpecError(f"buffer: expected a state with policy_version, got {sorted(state)}")
        self.set_policy_version(version)

    def close(self) -> None:
        """Wake every waiter with ClosedError and refuse further use."""
        self._gate.close()


class _Push:
    """What is left to do of one push."""

    def __init__(self, blocks: list[Block], waits: bool) -> None:
        self.blocks = blocks
        self.waits = waits
        self.total = sum(map(len, blocks))
        self.taken = 0


def _lengths(layout: Layout, config: BufferConfig) -> Lengths | None:
    """Return what checks lengths: needed for batches by steps, else where there are lengths."""
    needs = config.batch_steps is not None or is_scalar_length(layout)
    return Lengths(layout) if needs else None
