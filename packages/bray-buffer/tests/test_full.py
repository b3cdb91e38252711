"""What happens when a queue is full, and who waits for what."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from bray_buffer import Buffer, BufferConfig
from bray_core import nested
from bray_core.errors import ClosedError, DeadlineError
from bray_core.layout import Layout, Packed

SOON_S = 30.0
"""A deadline that is only reached if something hangs."""


def make(layout: Layout, batch_size: int, capacity: int, when_full: str = "block") -> Buffer:
    return Buffer(
        layout, BufferConfig(batch_size=batch_size, capacity=capacity, when_full=when_full)
    )


def until_waiting(buffer: Buffer, count: int = 1) -> None:
    """Return when `count` threads wait for the buffer."""
    deadline = threading.Event()
    while buffer._lock.num_waiting < count:
        deadline.wait(0.001)


def test_every_drop_of_the_oldest_is_counted(layout, segment, recorded):
    buffer = make(layout, 2, 3, "drop_oldest")
    assert buffer.push(*map(segment, range(5)), wait=True) == 5
    buffer.pop(0)
    assert buffer.stats() == {"pushed": 5, "popped": 2, "dropped": 2, "queued": 1}
    assert recorded() == {"buffer/dropped_segments": 2, "buffer/queued_segments": 1}


def test_every_drop_of_the_newest_is_counted(layout, segment, recorded):
    buffer = make(layout, 3, 3, "drop_newest")
    assert buffer.push(*map(segment, range(5)), wait=True) == 3
    assert buffer.push(segment(9)) == 0
    assert buffer.stats()["dropped"] == recorded()["buffer/dropped_segments"] == 3


def test_what_a_blocking_queue_refuses_stays_with_the_caller(layout, segment, recorded):
    buffer = make(layout, 3, 3)
    rows = Packed(layout, layout.pack(nested.stack([segment(i) for i in range(5)])))
    assert buffer.push(rows, segment(5)) == 3
    assert buffer.push(rows) == 0
    assert buffer.stats()["dropped"] == 0
    assert "buffer/dropped_segments" not in recorded()
    buffer.pop(0)
    assert buffer.push(rows) == 3


def test_a_push_that_misses_its_deadline_says_how_far_it_came(layout, segment):
    buffer = make(layout, 2, 2)
    with pytest.raises(DeadlineError, match=r"in time \(0.01 s\): 2 of 3 segments were accepted"):
        buffer.push(*map(segment, range(3)), wait=True, timeout_s=0.01)
    assert buffer.stats()["pushed"] == 2


def test_a_push_longer_than_the_queue_goes_through_as_it_empties(layout, segment, numbers):
    buffer = make(layout, 2, 3)
    with ThreadPoolExecutor(1) as pool:
        pushed = pool.submit(buffer.push, *map(segment, range(8)), wait=True, timeout_s=SOON_S)
        got = [numbers(buffer.pop(SOON_S)) for _ in range(4)]
        assert pushed.result(SOON_S) == 8
    assert got == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_close_wakes_producers_consumers_and_iterators(layout, segment):
    full, empty = make(layout, 1, 1), make(layout, 1, 1)
    full.push(segment(0))
    with ThreadPoolExecutor(3) as pool:
        pushing = pool.submit(full.push, segment(1), wait=True)
        popping = pool.submit(empty.pop)
        iterating = pool.submit(list, empty)
        until_waiting(full)
        until_waiting(empty, 2)
        full.close()
        empty.close()
        for waiting in (pushing, popping):
            with pytest.raises(ClosedError, match="buffer: closed"):
                waiting.result(SOON_S)
        assert iterating.result(SOON_S) == []


def test_several_consumers_repeat_nothing(layout, segment, numbers):
    buffer = make(layout, 5, 16)

    def consume() -> list[int]:
        return [number for batch in buffer for number in numbers(batch)]

    with ThreadPoolExecutor(3) as pool:
        eating = [pool.submit(consume) for _ in range(3)]
        for number in range(0, 300, 3):
            buffer.push(*map(segment, range(number, number + 3)), wait=True, timeout_s=SOON_S)
        assert buffer._lock.wait_for(lambda: buffer.stats()["popped"] == 300 or None, SOON_S)
        buffer.close()
        got = [number for done in eating for number in done.result(SOON_S)]
    assert sorted(got) == list(range(300))
