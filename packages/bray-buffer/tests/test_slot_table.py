"""The state of a slot pool against a plain model, with processes that die at any point."""

import contextlib

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bray_buffer.shared.slot_table import COUNTERS, SlotTable

SLOTS, ROWS, QUEUED = 5, 3, 2
STEPS = 6
members = st.integers(1, 3)


class Life(RuleBasedStateMachine):
    """Rows carry numbers; the model knows which are where."""

    batch_steps = 0

    def __init__(self):
        super().__init__()
        memory = memoryview(bytearray(SlotTable.nbytes(SLOTS, ROWS)))
        self.table = SlotTable(memory, SLOTS, ROWS, QUEUED, self.batch_steps)
        self.rows = {}  # (slot, row) -> (number, steps)
        self.writing = []  # (member, claim)
        self.lent = {}  # slot -> member
        self.number = 0
        self.seen = set()
        self.was_partial = False
        self.expected = dict.fromkeys(COUNTERS, 0)

    @rule(member=members, steps=st.lists(st.integers(1, 4), min_size=1, max_size=4))
    def claim(self, member, steps):
        claim = self.table.claim(member, len(steps), steps if self.batch_steps else None)
        if claim is None:
            assert self.table.num_free() == 0
            return
        for index in range(claim.count):
            at = claim.slot, claim.first + index
            assert at not in self.rows, "a row is claimed twice"
            self.rows[at] = self.number, steps[index]
            self.number += 1
        self.writing.append((member, claim))
        self.expected["pushed"] += claim.count

    @precondition(lambda self: self.writing)
    @rule(data=st.data())
    def commit(self, data):
        _, claim = self.writing.pop(data.draw(st.integers(0, len(self.writing) - 1)))
        self.table.commit(claim)

    @precondition(lambda self: self.writing)
    @rule(data=st.data())
    def abandon(self, data):
        _, claim = self.writing.pop(data.draw(st.integers(0, len(self.writing) - 1)))
        self.table.abandon(claim)
        self._forget(claim)
        self.expected["pushed"] -= claim.count

    def _forget(self, claim):
        for index in range(claim.count):
            del self.rows[claim.slot, claim.first + index]

    def _slot(self, slot):
        return {at: row for at, row in self.rows.items() if at[0] == slot}

    def _is_whole(self, slot):
        """Every row of it is written."""
        return all(claim.slot != slot for _, claim in self.writing)

    @rule(member=members, partial=st.booleans())
    def lend(self, member, partial):
        lent = self.table.lend(member, partial)
        self.was_partial |= partial  # an open slot is closed by it, also if it is lent later
        if lent is None:
            return
        slot, count = lent
        held = self._slot(slot)
        assert self._is_whole(slot), "a batch is lent while a row of it is written"
        assert len(held) == count
        assert sorted(row for _, row in held) == list(range(count))
        if not self.was_partial:
            steps = sum(steps for _, steps in held.values())
            assert count == ROWS or (self.batch_steps and steps >= self.batch_steps)
        numbers = {number for number, _ in held.values()}
        assert not numbers & self.seen, "a segment is given twice"
        self.seen |= numbers
        self.lent[slot] = member
        self.expected["popped"] += count

    @precondition(lambda self: self.lent)
    @rule(data=st.data())
    def release(self, data):
        slot = data.draw(st.sampled_from(sorted(self.lent)))
        del self.lent[slot]
        self.table.release(slot)
        for at in self._slot(slot):
            del self.rows[at]

    @precondition(lambda self: self.lent)
    @rule(data=st.data())
    def find_stale(self, data):
        slot = data.draw(st.sampled_from(sorted(self.lent)))
        held = sorted(row for _, row in self._slot(slot))
        stale = data.draw(st.lists(st.sampled_from(held), min_size=1, unique=True))
        del self.lent[slot]
        self.table.reopen(slot, stale)
        self.seen -= {number for number, _ in self._slot(slot).values()}
        for row in stale:
            del self.rows[slot, row]
        self.expected["popped"] -= len(held)
        self.expected["stale"] += len(stale)

    @rule()
    def drop_oldest(self):
        before = dict(self.rows)
        count = self.table.drop_oldest()
        if count:
            queued = {at[0] for at in before if at[0] not in self.lent}
            dropped = next(
                slot
                for slot in queued
                if self._is_whole(slot)
                and len(self._slot(slot)) == count
                and self.table._state[slot] == 0
            )
            for at in self._slot(dropped):
                del self.rows[at]
        self.expected["dropped"] += count

    @rule(member=members)
    def die(self, member):
        lost = 0
        for owner, claim in [one for one in self.writing if one[0] == member]:
            self.writing.remove((owner, claim))
            self._forget(claim)
            lost += claim.count
        for slot in [slot for slot, owner in self.lent.items() if owner == member]:
            del self.lent[slot]
            held = self._slot(slot)
            lost += len(held)
            self.expected["popped"] -= len(held)
            for at in held:
                del self.rows[at]
        assert self.table.reclaim(lambda one: one != member) == lost
        self.expected["lost"] += lost

    @invariant()
    def counts_add_up(self):
        counts = {name: self.table.word(name) for name in COUNTERS}
        assert counts == self.expected
        queued = self.table.num_queued()
        assert queued == sum(at[0] not in self.lent for at in self.rows)
        gone = sum(counts[name] for name in COUNTERS if name != "pushed")
        assert counts["pushed"] == queued + gone
        assert self.table.num_lent() == len(self.lent)
        if self.batch_steps:
            steps = sum(steps for at, (_, steps) in self.rows.items() if at[0] not in self.lent)
            assert self.table.num_steps() == steps


class LifeBySteps(Life):
    batch_steps = STEPS


TestLife = Life.TestCase
TestLifeBySteps = LifeBySteps.TestCase
TestLife.settings = TestLifeBySteps.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)


def test_batches_come_in_the_order_in_which_they_were_begun():
    table = SlotTable(memoryview(bytearray(SlotTable.nbytes(SLOTS, 1))), SLOTS, 1, 3, 0)
    first, second = table.claim(1, 1), table.claim(1, 1)
    table.commit(second)
    assert table.lend(2) == (second.slot, 1)  # the first is not written yet
    third = table.claim(1, 1)
    table.commit(third)
    table.commit(first)
    assert [table.lend(2)[0] for _ in range(2)] == [first.slot, third.slot]


def test_a_hole_is_filled_before_fresh_rows():
    table = SlotTable(memoryview(bytearray(SlotTable.nbytes(2, 4))), 2, 4, 1, 0)
    dead, alive = table.claim(1, 2), table.claim(2, 1)
    table.commit(alive)
    assert table.reclaim(lambda member: member != 1) == 2
    claim = table.claim(3, 4)
    assert (claim.slot, claim.first, claim.count) == (dead.slot, dead.first, 2)
    table.commit(claim)
    last = table.claim(3, 4)
    assert (last.first, last.count) == (3, 1)
    table.commit(last)
    assert table.lend(2) == (dead.slot, 4)


def test_a_table_left_half_written_is_mended():
    """What a process that is killed inside `claim` may leave behind."""
    table = SlotTable(memoryview(bytearray(SlotTable.nbytes(2, 4))), 2, 4, 1, 8)
    table.commit(table.claim(1, 1, [2]))
    table._steps[0] += 5  # its rows were not counted any more
    table._row_state[1] = 1
    table.reclaim(lambda member: False)
    assert (table.num_steps(), table.num_queued()) == (2, 1)
    claim = table.claim(2, 3, [2, 4, 1])
    assert (claim.first, claim.count) == (1, 2)
    table.commit(claim)
    assert table.lend(3) == (0, 3)


class KilledAfter:
    """Memory whose writer is killed before a store, after so many others."""

    def __init__(self, memory, stores):
        self.memory, self.stores = memory, stores

    def __getattr__(self, name):
        return getattr(self.memory, name)

    def __getitem__(self, index):
        return self.memory[index]

    def __setitem__(self, index, value):
        if self.stores == 0:
            raise SystemExit
        self.stores -= 1
        self.memory[index] = value


@pytest.mark.parametrize("column", ["_words", "_used", "_holes", "_state", "_row_state"])
@pytest.mark.parametrize("act", ["claim", "abandon", "lend", "drop_oldest", "reopen", "reclaim"])
@pytest.mark.parametrize("stores", range(5))
def test_a_process_killed_between_two_stores_leaves_counts_that_add_up(act, column, stores):
    table = SlotTable(memoryview(bytearray(SlotTable.nbytes(3, 2))), 3, 2, 2, 0)
    full, half = table.claim(1, 2), table.claim(1, 1)
    table.commit(full)
    table.add_outside("dropped", 5)
    if act in ("reopen", "reclaim"):
        table.lend(1)
    memory = getattr(table, column)
    setattr(table, column, KilledAfter(memory, stores))
    with contextlib.suppress(SystemExit):
        match act:
            case "claim":
                table.claim(1, 1)
            case "abandon":
                table.abandon(half)
            case "lend":
                table.lend(1)
            case "drop_oldest":
                table.drop_oldest()
            case "reopen":
                table.reopen(full.slot, [0])
            case "reclaim":
                table.reclaim(lambda member: False)
    setattr(table, column, memory)
    table.reclaim(lambda member: member != 1)
    counts = {name: table.word(name) for name in COUNTERS}
    gone = sum(counts[name] for name in COUNTERS if name != "pushed")
    assert counts["pushed"] + 5 == gone + table.num_queued()
    assert min(counts.values()) >= 0
