"""Which rows of which slots are free, being written, ready and lent: the state of a slot pool.

A slot is the memory of one batch, a row of it one segment. The table lies in shared memory. Its
methods are called under the pool's lock, but for `commit` and `release`, which store one state
each; and every method stores in such an order that a process which is killed between two stores
leaves a table that `reclaim` can mend: rows count as pushed before they are there, and as popped
before they are lent.

    slot   FREE → OPEN (rows may be claimed) → CLOSED (ready once all are written) → LENT → FREE
    row    EMPTY → WRITING → WRITTEN

A row whose writer died becomes a hole, and its slot is open again until another fills it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bray_core.files.shared_file import fence

FREE, OPEN, CLOSED, LENT = range(4)
EMPTY, WRITING, WRITTEN = range(3)

COUNTERS = ("pushed", "popped", "dropped", "lost", "stale")
_NAMES = ("closed", "policy_version", "sequence", "held", "failures", "outside", *COUNTERS)
_WORDS = {name: index for index, name in enumerate(_NAMES)}
_SLOT_WORDS = ("sequence", "used", "holes", "steps", "owner")
_LINE = 64


@dataclass(frozen=True, slots=True)
class Claim:
    """Rows of one slot that a process writes: `first`, `first + 1`, …"""

    slot: int
    first: int
    count: int


class SlotTable:
    """The table over a given piece of memory.

    Args:
        memory: Memory of `nbytes(…)` bytes; zeros are an empty table.
        slots: Number of slots.
        rows: Rows of a slot.
        max_queued: Number of slots that may be open or closed at a time.
        batch_steps: Number of steps at which a slot is closed before its rows are used up; 0 never
            closes one.
    """

    def __init__(
        self, memory: memoryview, slots: int, rows: int, max_queued: int, batch_steps: int
    ) -> None:
        self._slots = slots
        self._rows = rows
        self._max_queued = max_queued
        self._batch_steps = batch_steps
        words, per_slot, per_row = _lengths(slots, rows)
        self._words = memory[:words].cast("q")
        table = memory[words : words + per_slot]
        table = table[: 8 * len(_SLOT_WORDS) * slots]
        width = 8 * slots
        columns = [table[start : start + width].cast("q") for start in range(0, len(table), width)]
        self._sequence, self._used, self._holes, self._steps, self._owner = columns
        per_row_memory = memory[words + per_slot : words + per_slot + per_row]
        count = slots * rows
        self._row_steps = per_row_memory[: 4 * count].cast("i")
        self._row_owner = per_row_memory[4 * count : 6 * count].cast("h")
        self._row_state = per_row_memory[6 * count : 7 * count]
        self._state = per_row_memory[7 * count : 7 * count + slots]

    @staticmethod
    def nbytes(slots: int, rows: int) -> int:
        """Return how much memory a table needs."""
        return sum(_lengths(slots, rows))

    def word(self, name: str) -> int:
        """Return a word of the table's head."""
        return self._words[_WORDS[name]]

    def set_word(self, name: str, value: int) -> None:
        """Store a word of the table's head."""
        self._words[_WORDS[name]] = value

    def add(self, name: str, count: int) -> None:
        """Add to a word of the table's head."""
        self._words[_WORDS[name]] += count

    def add_outside(self, name: str, count: int) -> None:
        """Count rows that have no place in the table: that found no room, or had left it."""
        self.add("outside", count)
        self.add(name, count)

    # Producers.

    def claim(
        self, member: int, count: int, steps: Sequence[int] | None = None, seal: bool = False
    ) -> Claim | None:
        """Claim up to `count` rows of the oldest slot that has room; None if there is none.

        Args:
            member: Number of the process that claims.
            count: Number of rows wanted; fewer are given where the slot ends.
            steps: Steps of each row, with `batch_steps`.
            seal: Whether the slot is closed with these rows.
        """
        slot = self._open_slot()
        if slot is None:
            return None
        first, found = self._free_rows(slot, count)
        if self._batch_steps:
            assert steps is not None
            found = self._until_full(slot, found, steps)
        row = slot * self._rows + first
        self.add("pushed", found)
        # The owner first: a row that is being written always tells by whom.
        self._row_owner[row : row + found] = array("h", (member,)) * found
        self._row_state[row : row + found] = bytes((WRITING,)) * found
        if self._batch_steps and steps is not None:
            self._row_steps[row : row + found] = array("i", steps[:found])
            self._steps[slot] += sum(steps[:found])
        # Rows after the used ones are fresh; the others were holes.
        if first == self._used[slot]:
            self._used[slot] = first + found
        else:
            self._holes[slot] -= found
        if seal or self._is_full(slot):
            self._state[slot] = CLOSED
        return Claim(slot, first, found)

    def _slots_in(self, state: int) -> list[int]:
        """Return the slots in a state, the oldest first."""
        # One copy: other processes store states meanwhile.
        states = self._state.tobytes()
        count = states.count(state)
        if count <= 1:
            return [states.find(state)] if count else []
        found = (np.frombuffer(states, np.uint8) == state).nonzero()[0].tolist()
        found.sort(key=self._sequence.__getitem__)
        return list(found)

    def _num_in(self, state: int) -> int:
        return self._state.tobytes().count(state)

    def _open_slot(self) -> int | None:
        open_ = self._slots_in(OPEN)
        if open_:
            return open_[0]
        if self._num_in(CLOSED) >= self._max_queued:
            return None
        slot = self._state.tobytes().find(FREE)
        if slot < 0:
            return None
        for column in (self._used, self._holes, self._steps, self._owner):
            column[slot] = 0
        self.add("sequence", 1)
        self._sequence[slot] = self.word("sequence")
        # The state last: a slot that is not set up yet stays free.
        self._state[slot] = OPEN
        return slot

    def _free_rows(self, slot: int, count: int) -> tuple[int, int]:
        """Return the first free rows: holes before those that were never used."""
        used = self._used[slot]
        if not self._holes[slot]:
            return used, min(count, self._rows - used)
        states = bytes(self._row_state[slot * self._rows : slot * self._rows + used])
        # A claim is one range: the holes that lie side by side.
        first = states.find(EMPTY)
        length = len(states[first:]) - len(states[first:].lstrip(bytes((EMPTY,))))
        return first, min(count, length)

    def _until_full(self, slot: int, found: int, steps: Sequence[int]) -> int:
        """Return how many of the rows it takes until the slot has its steps."""
        total = self._steps[slot]
        for index in range(found):
            total += steps[index]
            if total >= self._batch_steps:
                return index + 1
        return found

    def _is_full(self, slot: int) -> bool:
        if self._batch_steps and self._steps[slot] >= self._batch_steps:
            return True
        return self._used[slot] == self._rows and not self._holes[slot]

    def commit(self, claim: Claim) -> None:
        """Make written rows count; needs no lock."""
        row = claim.slot * self._rows + claim.first
        # The fence keeps the rows before their state, for readers without the lock.
        fence()
        self._row_state[row : row + claim.count] = bytes((WRITTEN,)) * claim.count

    def abandon(self, claim: Claim) -> None:
        """Give claimed rows back unwritten."""
        row = claim.slot * self._rows + claim.first
        self._empty(claim.slot, range(row, row + claim.count))
        self.add("pushed", -claim.count)

    def _empty(self, slot: int, rows: Sequence[int]) -> None:
        """Make holes of rows of a slot, and open it."""
        for row in rows:
            self._row_state[row] = EMPTY
        self._recount(slot)

    def _recount(self, slot: int) -> None:
        """Set what a slot holds from its rows, and its state from that."""
        first = slot * self._rows
        states = bytes(self._row_state[first : first + self._used[slot]])
        holes = states.count(EMPTY)
        self._holes[slot] = holes
        if self._batch_steps:
            steps = self._row_steps[first : first + len(states)]
            self._steps[slot] = sum(
                step for step, state in zip(steps, states, strict=True) if state != EMPTY
            )
        if holes == len(states):
            self._state[slot] = FREE
        else:
            self._state[slot] = CLOSED if self._is_full(slot) else OPEN

    def drop_oldest(self) -> int:
        """Free the oldest ready slot; return how many rows it had, 0 if none is ready."""
        slot = self._oldest_ready()
        if slot is None:
            return 0
        count = self._used[slot]
        self._free(slot)
        self.add("dropped", count)
        return count

    def _free(self, slot: int) -> None:
        self._row_state[slot * self._rows : (slot + 1) * self._rows] = bytes(self._rows)
        self._state[slot] = FREE

    # Consumers.

    def lend(self, member: int, partial: bool = False) -> tuple[int, int] | None:
        """Lend the oldest ready slot; return it with the number of its rows, or None.

        Args:
            member: Number of the process that takes it.
            partial: Whether an open slot may be closed for it, however few rows it has.
        """
        slot = self._oldest_ready()
        if slot is None and partial:
            slot = self._close_early()
        if slot is None:
            return None
        count = self._used[slot]
        self._owner[slot] = member
        self.add("popped", count)
        self._state[slot] = LENT
        return slot, count

    def has_ready(self) -> bool:
        """Return whether `lend` would find a slot; may be asked without the lock."""
        return self._oldest_ready() is not None

    def _oldest_ready(self) -> int | None:
        # A closed slot may wait for a slow writer while a younger one is ready.
        return next((slot for slot in self._slots_in(CLOSED) if self._is_written(slot)), None)

    def _is_written(self, slot: int) -> bool:
        used = self._used[slot]
        first = slot * self._rows
        return bytes(self._row_state[first : first + used]).count(WRITTEN) == used

    def _close_early(self) -> int | None:
        for slot in self._slots_in(OPEN):
            if self._used[slot] and not self._holes[slot]:
                # Closed in any case: it takes no more rows, and is ready once all are written.
                self._state[slot] = CLOSED
                return slot if self._is_written(slot) else None
        return None

    def num_lent(self) -> int:
        """Return how many slots are lent."""
        return self._num_in(LENT)

    def release(self, slot: int) -> None:
        """Take a lent slot back; needs no lock."""
        # The fence keeps the last read of the rows before the slot is free.
        fence()
        self._row_state[slot * self._rows : (slot + 1) * self._rows] = bytes(self._rows)
        self._state[slot] = FREE

    def reopen(self, slot: int, stale: Sequence[int]) -> None:
        """Make holes of rows of a lent slot, and put it back into the queue."""
        first, count = slot * self._rows, self._used[slot]
        self._empty(slot, [first + row for row in stale])
        self.add("popped", -count)
        self.add("stale", len(stale))

    # Those who died.

    def reclaim(self, is_alive: Callable[[int], bool]) -> int:
        """Free what dead processes held, and return how many rows of theirs are lost.

        A row half written becomes a hole; a batch that was lent is gone with who took it. What a
        process left half done in the table itself is counted anew: a row that was pushed and is
        nowhere is lost, one that is still queued was not popped.
        """
        # Number 0 is no process.
        alive = {0: False}
        lost = 0

        def is_dead(member: int) -> bool:
            if member not in alive:
                alive[member] = is_alive(member)
            return not alive[member]

        for slot in range(self._slots):
            state = self._state[slot]
            if state == LENT and is_dead(self._owner[slot]):
                count = self._used[slot]
                lost += count
                self._free(slot)
                self.add("popped", -count)
            elif state in (OPEN, CLOSED):
                lost += self._empty_dead(slot, is_dead)
        self.add("lost", lost)
        missing = self._num_missing()
        self.add("lost" if missing > 0 else "popped", missing)
        return lost + max(missing, 0)

    def _num_missing(self) -> int:
        """Return how many rows more were pushed than are found; below 0 the other way round."""
        gone = sum(self.word(name) for name in COUNTERS if name != "pushed")
        return self.word("pushed") + self.word("outside") - gone - self.num_queued()

    def _empty_dead(self, slot: int, is_dead: Callable[[int], bool]) -> int:
        first = slot * self._rows
        states = bytes(self._row_state[first : first + self._used[slot]])
        dead = [
            first + row
            for row in (range(len(states)) if WRITING in states else ())
            if states[row] == WRITING and is_dead(self._row_owner[first + row])
        ]
        self._empty(slot, dead)
        return len(dead)

    # Figures.

    def num_queued(self) -> int:
        """Return how many rows are queued or being written."""
        return sum(self._used[slot] - self._holes[slot] for slot in self._queued())

    def _queued(self) -> list[int]:
        return self._slots_in(OPEN) + self._slots_in(CLOSED)

    def is_empty(self) -> bool:
        """Return whether nothing is queued; may be asked without the lock."""
        return not self._num_in(OPEN) and not self._num_in(CLOSED)

    def has_room(self) -> bool:
        """Return whether a claim would find rows; may be asked without the lock."""
        if self._num_in(OPEN):
            return True
        return self._num_in(CLOSED) < self._max_queued and self._num_in(FREE) > 0

    def num_free(self) -> int:
        """Return how many rows may be claimed before the queue is full."""
        open_ = self._slots_in(OPEN)
        used = sum(self._used[slot] - self._holes[slot] for slot in open_)
        queued = len(open_) + self._num_in(CLOSED)
        fresh = max(0, min(self._max_queued - queued, self._num_in(FREE)))
        return (fresh + len(open_)) * self._rows - used

    def num_steps(self) -> int:
        """Return how many steps those have, with `batch_steps`."""
        return sum(self._steps[slot] for slot in self._queued())

    def ready_slots(self) -> list[tuple[int, int]]:
        """Return the slots with written rows in their order, each with the number of rows."""
        order = sorted(self._queued(), key=self._sequence.__getitem__)
        return [(slot, self._used[slot]) for slot in order if self._is_written(slot)]


def _lengths(slots: int, rows: int) -> tuple[int, int, int]:
    """Return the bytes of head, slots and rows."""
    sizes = 8 * len(_WORDS), 8 * len(_SLOT_WORDS) * slots, 7 * slots * rows + slots
    head, table, per_row = (-(-size // _LINE) * _LINE for size in sizes)
    return head, table, per_row
