"""Batches in shared memory: any number of processes write rows, any number take whole batches.

A producer claims rows under the pool's lock (microseconds), writes them without it, and marks them
written: one copy a segment, into its place in the batch. A consumer takes a ready batch by its
slot number and looks at it where it lies; the slot is free again when the last view of it is
garbage. No process is in between.
"""

from __future__ import annotations

import math
import os
import struct
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from bray_buffer.queue.policy_lag import PolicyLag
from bray_buffer.shared.slot_table import COUNTERS, Claim, SlotTable
from bray_core.errors import ClosedError, NotFoundError
from bray_core.files.shared_file import SharedFile, sweep, up_to_page
from bray_core.layout import Block

T = TypeVar("T")

Write = Callable[[Block, int], None]
"""Fills memory `[k, nbytes]` with the rows that follow so many others of the same push."""

PREFIX = "bray-buffer-"
_MAGIC = b"BRAYBF01"
_HEAD = struct.Struct("<8s4q")
_MAX_LENT = 3
"""Batches that consumers may hold where they lie; the next one is copied for its consumer."""
_FIRST_PAUSE_S = 0.00005
_LONGEST_PAUSE_S = 0.001
_LOOK_FOR_DEAD_S = 0.1
"""How long somebody waits before it looks for dead processes, and between two such looks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolShape:
    """The sizes of a pool."""

    row_nbytes: int
    """Size of a segment."""
    rows: int
    """Rows of a slot: the largest number of segments in a batch."""
    max_queued: int
    """Batches that may be queued, the one that is being filled included."""
    batch_steps: int = 0
    """Steps at which a batch is complete before its rows are used up; 0 for never."""

    @property
    def slots(self) -> int:
        """Slots: the queue's, and those that consumers hold meanwhile."""
        return self.max_queued + _MAX_LENT


class SlotPool:
    """One process's view of a pool. Make it with `create` or `open`. Thread-safe."""

    def __init__(self, file: SharedFile, shape: PoolShape) -> None:
        self.shape = shape
        self._file = file
        start = up_to_page(_HEAD.size)
        size = SlotTable.nbytes(shape.slots, shape.rows)
        self._table = SlotTable(
            memoryview(file.map)[start : start + size],
            shape.slots,
            shape.rows,
            shape.max_queued,
            shape.batch_steps,
        )
        self._slot_nbytes = up_to_page(shape.rows * shape.row_nbytes)
        self._data = start + up_to_page(size)
        whole = np.frombuffer(file.map, np.uint8)
        self._address = whole.ctypes.data
        self._blocks: list[Block] = [
            whole[at : at + shape.rows * shape.row_nbytes].reshape(shape.rows, shape.row_nbytes)
            for at in range(self._data, file.nbytes, self._slot_nbytes)
        ]
        with file.locked():  # what one that died left under this process's number
            self._table.reclaim(lambda member: member != file.member and file.is_alive(member))

    @classmethod
    def create(cls, name: str, shape: PoolShape) -> SlotPool:
        """Make a pool below /dev/shm; removes those that crashed processes left there.

        Raises:
            CapacityError: shared memory has no room; the message says how much is needed.
        """
        sweep(PREFIX)
        table = up_to_page(SlotTable.nbytes(shape.slots, shape.rows))
        data = shape.slots * up_to_page(shape.rows * shape.row_nbytes)
        file = SharedFile.create(
            name,
            up_to_page(_HEAD.size) + table + data,
            f"buffer: {shape.slots} batches of {shape.rows} segments of {shape.row_nbytes:,} bytes",
        )
        fields = shape.row_nbytes, shape.rows, shape.max_queued, shape.batch_steps
        file.map[: _HEAD.size] = _HEAD.pack(_MAGIC, *fields)
        return cls(file, shape)

    @classmethod
    def open(cls, file: SharedFile) -> SlotPool:
        """Open a pool of `create`.

        Raises:
            NotFoundError: the file is not a pool.
        """
        magic, row_nbytes, rows, max_queued, steps = _HEAD.unpack_from(file.map)
        if magic != _MAGIC:
            raise NotFoundError(f"buffer: {file.path} is no pool of batches")
        shape = PoolShape(
            row_nbytes=row_nbytes, rows=rows, max_queued=max_queued, batch_steps=steps
        )
        return cls(file, shape)

    # Producers.

    def push(
        self,
        rows: Block,
        steps: Sequence[int] | None = None,
        *,
        when_full: Literal["drop_oldest", "refuse"] = "refuse",
        deadline: float = 0.0,
    ) -> int:
        """Copy rows `[n, nbytes]` into batches; return how many found room before the deadline.

        Args:
            rows: Rows of segments `[n, nbytes]`.
            steps: Steps of each row, with `batch_steps`.
            when_full: Whether the oldest batch is dropped (and counted) for them.
            deadline: Time of `time.monotonic` at which the wait ends.

        Raises:
            ClosedError: the pool was closed.
        """
        write = copying(rows)
        return self.fill(len(rows), write, steps, when_full=when_full, deadline=deadline)

    def fill(
        self,
        count: int,
        write: Write,
        steps: Sequence[int] | None = None,
        *,
        when_full: Literal["drop_oldest", "refuse"] = "refuse",
        deadline: float = 0.0,
        seal: bool = False,
    ) -> int:
        """`push` without rows at hand: they are written where they will lie.

        Args:
            count: Number of rows to write.
            write: Function that is called with memory `[k, nbytes]` and the number of rows written
                before; if it raises, the memory is given back unwritten.
            steps: Steps of each row, with `batch_steps`.
            when_full: Whether the oldest batch is dropped (and counted) for them.
            deadline: Time of `time.monotonic` at which the wait ends.
            seal: Whether these rows are a batch of their own.
        """
        done = 0
        while done < count:
            claim = self._claim(count - done, steps and steps[done:], when_full, deadline, seal)
            if claim is None:
                break
            try:
                rows = self._blocks[claim.slot][claim.first : claim.first + claim.count]
                write(rows, done)
            # Ctrl-C too: rows that stay claimed would hold up their batch.
            except BaseException:
                with self._file.locked():
                    self._table.abandon(claim)
                raise
            self._table.commit(claim)
            done += claim.count
        return done

    def _claim(
        self,
        count: int,
        steps: Sequence[int] | None,
        when_full: str,
        deadline: float,
        seal: bool,
    ) -> Claim | None:
        def attempt() -> Claim | None:
            with self._file.locked():
                claim = self._table.claim(self._file.member, count, steps, seal)
                if claim is None and when_full == "drop_oldest" and self._table.drop_oldest():
                    claim = self._table.claim(self._file.member, count, steps, seal)
            return claim

        return self._retry(attempt, deadline)

    # Consumers.

    def take(
        self,
        deadline: float,
        *,
        partial: bool = False,
        lag: PolicyLag | None = None,
    ) -> Block | None:
        """Return the oldest ready batch `[n, nbytes]`, or None if none comes before the deadline.

        Its memory is the pool's until the last view of it is garbage; where consumers hold too
        many such already, a copy.

        Args:
            deadline: Time of `time.monotonic` at which the wait ends.
            partial: Whether a batch may be incomplete.
            lag: Policy lag; rows that are too old for it are dropped and counted, and the rest
                waits until others have filled their place.

        Raises:
            ClosedError: the pool was closed.
        """

        def attempt() -> tuple[int, int, bool] | None:
            # A look without the lock, for most tries find nothing.
            if not partial and not self._table.has_ready():
                return None
            with self._file.locked():
                found = self._table.lend(self._file.member, partial)
                if found is None or (lag and self._drop_stale(*found, lag)):
                    return None
                return *found, self._table.num_lent() > _MAX_LENT

        found = self._retry(attempt, deadline)
        if found is None:
            return None
        slot, count, copied = found
        if copied:
            block = self._blocks[slot][:count].copy()
            self._table.release(slot)
            return block
        return self._lease(slot, count)

    def _drop_stale(self, slot: int, count: int, lag: PolicyLag) -> bool:
        lag.version = self._table.word("policy_version")
        stale = np.flatnonzero(lag.is_stale(self._blocks[slot][:count]))
        if len(stale):
            self._table.reopen(slot, stale.tolist())
        return len(stale) > 0

    def _lease(self, slot: int, count: int) -> Block:
        """Return the slot's rows as an array whose end releases the slot."""
        lease = _Lease(
            self._address + self._data + slot * self._slot_nbytes,
            (count, self.shape.row_nbytes),
            self._file,
        )
        # Not at exit: whoever ends is found dead, and its slots are freed by others.
        weakref.finalize(lease, _release, self._table, slot, os.getpid()).atexit = False
        block: Block = np.asarray(lease)
        return block

    def take_queued(self) -> list[Block]:
        """Return copies of all rows that are queued and whole, which stay queued."""
        with self._file.locked():
            slots = self._table.ready_slots()
            return [self._blocks[slot][:count].copy() for slot, count in slots]

    # Both.

    def _retry(self, attempt: Callable[[], T | None], deadline: float) -> T | None:
        """Call until it gives something, or the deadline is over."""
        pause_s = _FIRST_PAUSE_S
        next_look = time.monotonic() + _LOOK_FOR_DEAD_S
        while True:
            self._check_open()
            result = attempt()
            now = time.monotonic()
            if result is not None or now >= deadline:
                return result
            if now >= next_look:
                next_look = now + _LOOK_FOR_DEAD_S
                self.reclaim()
            time.sleep(min(pause_s, max(0.0, deadline - now)))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _check_open(self) -> None:
        if self._table.word("closed"):
            raise ClosedError("buffer: closed")

    def reclaim(self) -> int:
        """Free what dead processes held; return how many rows are lost with them."""
        with self._file.locked():
            return self._table.reclaim(self._file.is_alive)

    def word(self, name: str) -> int:
        """Return a word of the pool's table, such as `policy_version`."""
        return self._table.word(name)

    def set_word(self, name: str, value: int) -> None:
        """Set a word of the pool's table."""
        with self._file.locked():
            self._table.set_word(name, value)

    def add(self, name: str, count: int) -> None:
        """Add to a word of the pool's table; a counter of rows takes those that never came in."""
        with self._file.locked():
            if name in COUNTERS:
                self._table.add_outside(name, count)
            else:
                self._table.add(name, count)

    def stats(self) -> dict[str, float]:
        """Return counts of rows by what became of them, and what is `queued` now."""
        with self._file.locked():
            stats: dict[str, float] = {name: self._table.word(name) for name in COUNTERS}
            stats["queued"] = self._table.num_queued()
            if self.shape.batch_steps:
                stats["queued_steps"] = self._table.num_steps()
        return stats

    def progress(self) -> str:
        """Say how much of a batch is there."""
        stats = self.stats()
        if self.shape.batch_steps:
            return f"{stats['queued_steps']:g} of {self.shape.batch_steps} steps are there"
        return f"{stats['queued']:g} of {self.shape.rows} segments are there"

    def is_empty(self) -> bool:
        """Return whether nothing is queued; may be out of date at once."""
        return self._table.is_empty()

    def has_room(self) -> bool:
        """Return whether a row would find room; may be out of date at once."""
        return self._table.has_room()

    def num_pending(self) -> int:
        """Return how many rows are queued, or taken and not given back yet."""
        return self._table.num_queued() + self._table.num_lent()

    def num_free(self) -> int:
        """Return how many rows there is room for; may be out of date at once."""
        return self._table.num_free()

    def lose_held(self) -> None:
        """Count as lost what a process that died had taken into its own memory."""
        with self._file.locked():
            self._table.add_outside("lost", self._table.word("held"))
            self._table.set_word("held", 0)

    def close(self) -> None:
        """Wake every waiter with ClosedError, in every process, and remove the file's name."""
        self.set_word("closed", 1)
        self._file.unlink()

    def leave(self) -> None:
        """Leave the pool to the others; batches of this process stay valid."""
        self._file.close()


class _Lease:
    """Memory of a slot, as numpy takes it: an array made of it keeps it alive."""

    __slots__ = ("__array_interface__", "__weakref__", "_file")

    def __init__(self, address: int, shape: tuple[int, int], file: SharedFile) -> None:
        self._file = file
        self.__array_interface__ = {
            "version": 3,
            "data": (address, False),
            "shape": shape,
            "typestr": "|u1",
        }


def _release(table: SlotTable, slot: int, pid: int) -> None:
    if os.getpid() == pid:  # a forked child has a copy of the lease, not the slot
        table.release(slot)


def deadline_after(timeout_s: float | None) -> float:
    """Return the deadline of a wait; None waits for ever."""
    return math.inf if timeout_s is None else time.monotonic() + timeout_s


def copying(rows: Block) -> Write:
    """Return a function that writes rows `[n, nbytes]` that lie in memory already."""

    def write(target: Block, first: int) -> None:
        np.copyto(target, rows[first : first + len(target)])

    return write
