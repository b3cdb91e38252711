"""Whatever is pushed and popped, the queue does what a plain deque would."""

from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bray_buffer import Buffer, BufferConfig
from bray_core.errors import DeadlineError
from bray_core.layout import Layout, Packed


class AgainstAList(RuleBasedStateMachine):
    capacity, steps = 5, 6
    layout: Layout
    make: Callable[..., dict]

    def __init__(self) -> None:
        super().__init__()
        self.buffer = Buffer(
            self.layout, BufferConfig(batch_steps=self.steps, capacity=self.capacity)
        )
        self.expected: deque[tuple[int, int]] = deque()
        self.pushed = self.dropped = 0

    @rule(lengths=st.lists(st.integers(1, 4), max_size=7), packed=st.booleans())
    def push(self, lengths: list[int], packed: bool) -> None:
        trees = [self.make(self.pushed + i, length) for i, length in enumerate(lengths)]
        rows = [Packed(self.layout, self.layout.pack(tree)) for tree in trees] if packed else trees
        assert self.buffer.push(*rows) == len(lengths)
        for length in lengths:
            self.expected.append((self.pushed, length))
            self.pushed += 1
        while len(self.expected) > self.capacity:
            self.expected.popleft()
            self.dropped += 1

    def ready(self) -> int:
        """How many segments the next batch has."""
        total = 0
        for count, (_, length) in enumerate(self.expected, 1):
            total += length
            if total >= self.steps or count == self.capacity:
                return count
        return 0

    @precondition(lambda self: self.ready())
    @rule()
    def pop(self) -> None:
        batch = self.buffer.pop(0).tree
        for number, length in zip(batch["number"], batch["length"], strict=True):
            assert (number, length) == self.expected.popleft()

    @precondition(lambda self: not self.ready())
    @rule()
    def pop_nothing(self) -> None:
        with pytest.raises(DeadlineError):
            self.buffer.pop(0)

    @invariant()
    def counts(self) -> None:
        stats = self.buffer.stats()
        assert stats["queued"] == len(self.expected)
        assert stats["queued_steps"] == sum(length for _, length in self.expected)
        assert (stats["pushed"], stats["dropped"]) == (self.pushed, self.dropped)
        assert stats["pushed"] == stats["popped"] + stats["dropped"] + stats["queued"]


def test_against_a_list(layout, segment):
    machine = type("Machine", (AgainstAList,), {"layout": layout, "make": staticmethod(segment)})
    machine.TestCase.settings = settings(max_examples=50, deadline=None)
    machine.TestCase().runTest()
