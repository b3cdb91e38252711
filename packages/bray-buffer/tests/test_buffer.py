from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bray_buffer import Buffer, BufferConfig, Mixture, ReplayBuffer, ReplayConfig
from bray_buffer.queue.segment_ring import SegmentRing
from bray_core import nested
from bray_core.errors import (
    BrayError,
    ClosedError,
    ConfigError,
    DeadlineError,
    SpecError,
)
from bray_core.layout import Layout, Packed
from bray_core.nested import ArraySpec

T = 4


def segment(number: int, length: int = T) -> dict[str, Any]:
    return {
        "observation": {"units": [np.full((T, 3), number, np.float32)]},
        "length": np.array(length, np.int32),
    }


SPEC = nested.spec(segment(0))
LAYOUT = Layout(SPEC)


def numbers(batch: Packed) -> list[int]:
    return [int(n) for n in batch.tree["observation"]["units"][0][:, 0, 0]]


def test_batches_by_segments_come_in_order() -> None:
    buffer = Buffer(SPEC, BufferConfig(batch_size=2))
    assert buffer.push(*(segment(n) for n in range(5))) == 5
    assert numbers(buffer.pop()) == [0, 1]
    assert numbers(buffer.pop()) == [2, 3]
    with pytest.raises(DeadlineError, match="1 of 2 segments are there"):
        buffer.pop(0)
    assert buffer.stats() == {"pushed": 5, "popped": 4, "dropped": 0, "queued": 1}


@given(st.lists(st.integers(1, T), min_size=1, max_size=30), st.integers(1, 12))
def test_batches_by_steps_hold_whole_segments(lengths: list[int], batch_steps: int) -> None:
    buffer = Buffer(LAYOUT, BufferConfig(batch_steps=batch_steps, capacity=64))
    buffer.push(*(segment(n, length) for n, length in enumerate(lengths)))
    seen: list[int] = []
    while True:
        try:
            batch = buffer.pop(0)
        except DeadlineError:
            break
        steps = batch.tree["length"]
        assert steps.sum() >= batch_steps
        assert steps[:-1].sum() < batch_steps
        seen += numbers(batch)
    assert seen == list(range(len(seen)))
    assert sum(lengths[len(seen) :]) < batch_steps


def test_packed_segments_are_taken_as_they_are() -> None:
    buffer = Buffer(LAYOUT, BufferConfig(batch_size=3))
    block = np.stack([LAYOUT.pack(segment(n)) for n in (7, 8)])
    assert buffer.push(Packed(LAYOUT, block), Packed(LAYOUT, LAYOUT.pack(segment(9)))) == 3
    assert numbers(buffer.pop()) == [7, 8, 9]


@pytest.mark.parametrize(
    ("when_full", "accepted", "left", "dropped"),
    [
        ("drop_oldest", 5, [2, 3, 4], 2),
        ("drop_newest", 3, [0, 1, 2], 2),
        ("block", 3, [0, 1, 2], 0),
    ],
)
def test_a_full_buffer(when_full: Any, accepted: int, left: list[int], dropped: int) -> None:
    buffer = Buffer(SPEC, BufferConfig(batch_size=3, capacity=3, when_full=when_full))
    assert buffer.push(*(segment(n) for n in range(5))) == accepted
    assert numbers(buffer.pop()) == left
    assert buffer.stats()["dropped"] == dropped


def test_a_producer_waits_for_room_and_goes_on() -> None:
    buffer = Buffer(SPEC, BufferConfig(batch_size=1, capacity=2, when_full="block"))
    with pytest.raises(DeadlineError, match="no room in time"):
        buffer.push(*(segment(n) for n in range(3)), wait=True, timeout_s=0.05)
    done: list[int] = []
    producer = threading.Thread(target=lambda: done.append(buffer.push(segment(9), wait=True)))
    producer.start()
    assert [numbers(buffer.pop(5)) for _ in range(3)] == [[0], [1], [9]]
    producer.join(5)
    assert done == [1]


def test_a_buffer_too_small_for_a_batch_of_steps_gives_what_it_has() -> None:
    buffer = Buffer(SPEC, BufferConfig(batch_steps=100, capacity=3, when_full="block"))
    buffer.push(*(segment(n, 1) for n in range(3)))
    assert numbers(buffer.pop(0)) == [0, 1, 2]


def test_close_wakes_everyone() -> None:
    buffer = Buffer(SPEC, BufferConfig(batch_size=1))
    errors: list[BrayError] = []

    def consume() -> None:
        try:
            buffer.pop()
        except BrayError as error:
            errors.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    buffer.close()
    consumer.join(5)
    assert isinstance(errors[0], ClosedError)
    with pytest.raises(ClosedError):
        buffer.push(segment(0))
    assert list(buffer) == []


def test_producers_and_a_consumer_lose_nothing() -> None:
    buffer = Buffer(SPEC, BufferConfig(batch_size=5, capacity=10, when_full="block"))
    threads = [
        threading.Thread(
            target=lambda k=k: [buffer.push(segment(k * 1000 + n), wait=True) for n in range(100)]
        )
        for k in range(4)
    ]
    for thread in threads:
        thread.start()
    seen = [n for _ in range(80) for n in numbers(buffer.pop(10))]
    for thread in threads:
        thread.join(5)
    assert sorted(seen) == [k * 1000 + n for k in range(4) for n in range(100)]
    for k in range(4):
        assert [n for n in seen if n // 1000 == k] == [k * 1000 + n for n in range(100)]


def test_what_does_not_fit_is_named_and_nothing_is_added() -> None:
    buffer = Buffer(SPEC, BufferConfig(batch_size=1))
    bad = segment(0)
    bad["observation"]["units"][0] = np.zeros((T, 2), np.float32)
    with pytest.raises(
        SpecError,
        match=r"segment/observation/units\[0\]: expected float32 \(4, 3\), got float32 \(4, 2\)",
    ):
        buffer.push(segment(1), bad)
    other = Layout(nested.spec(bad))
    with pytest.raises(SpecError, match=r"segment/observation/units\[0\]: expected"):
        buffer.push(Packed(other, other.empty()))
    assert buffer.stats()["pushed"] == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "expected exactly one of batch_steps and batch_size"),
        ({"batch_size": 1, "batch_steps": 1}, "exactly one"),
        ({"batch_size": 0}, "batch_size: expected 1 or more, got 0"),
        ({"batch_size": 9, "capacity": 8}, "batch_size: 9 exceeds capacity=8"),
        ({"batch_size": 1, "when_full": "drop"}, "when_full: expected one of drop_oldest"),
    ],
)
def test_nonsense_is_refused(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BufferConfig(**settings)


def test_batches_by_steps_need_a_length() -> None:
    with pytest.raises(ConfigError, match="needs segments with a leaf `length`"):
        Buffer(nested.spec({"x": np.zeros(3)}), BufferConfig(batch_steps=3))


class TestReplay:
    def test_sampling_is_uniform_over_the_newest(self) -> None:
        replay = ReplayBuffer(SPEC, ReplayConfig(capacity=10, batch_size=1000, seed=3))
        replay.push(*(segment(n) for n in range(15)))
        drawn = [n for _ in range(10) for n in numbers(replay.pop())]
        counts = np.bincount(drawn, minlength=15)
        assert counts[:5].sum() == 0
        # Binomial(10,000, 1/10): standard deviation 30; 5 of them.
        assert np.all(np.abs(counts[5:] - 1000) < 150)
        assert replay.stats() == {"pushed": 15, "popped": 10000, "dropped": 5, "queued": 10}

    def test_it_waits_for_its_least_size(self) -> None:
        replay = ReplayBuffer(SPEC, ReplayConfig(capacity=10, batch_size=2, min_size=3))
        replay.push(segment(0))
        with pytest.raises(DeadlineError, match="1 of 3 segments"):
            replay.pop(0.01)
        replay.push(segment(1), segment(2))
        assert len(replay.pop(0).block) == 2
        replay.close()
        with pytest.raises(ClosedError):
            replay.pop()

    def test_the_same_seed_draws_the_same(self) -> None:
        def draw(seed: int) -> list[int]:
            replay = ReplayBuffer(SPEC, ReplayConfig(capacity=10, batch_size=20, seed=seed))
            replay.push(*(segment(n) for n in range(10)))
            return numbers(replay.pop())

        assert draw(1) == draw(1) != draw(2)

    def test_nonsense_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="min_size: 5 exceeds capacity=4"):
            ReplayConfig(capacity=4, batch_size=1, min_size=5)
        with pytest.raises(ConfigError, match="seed: expected 0 or more, got -1"):
            ReplayConfig(capacity=4, batch_size=2, seed=-1)
        with pytest.raises(ConfigError, match="samples_per_insert: expected more than 0, got 0"):
            ReplayConfig(capacity=4, batch_size=2, samples_per_insert=0.0, error_margin=8.0)
        with pytest.raises(ConfigError, match="batch_size: expected 1 or more, got 0"):
            ReplayConfig(capacity=4, batch_size=0)


class TestMixture:
    def filled(self, number: int) -> ReplayBuffer:
        replay = ReplayBuffer(SPEC, ReplayConfig(capacity=4, batch_size=1))
        replay.push(segment(number))
        return replay

    def test_shares_follow_the_weights_and_may_change(self) -> None:
        mixture = Mixture({"a": (self.filled(0), 3.0), "b": (self.filled(1), 1.0)}, seed=1)
        drawn = [numbers(mixture.pop(0))[0] for _ in range(2000)]
        assert 400 < sum(drawn) < 600  # Binomial(2,000, 1/4): 5 standard deviations are 97
        mixture.set_weights({"a": 0.0, "b": 2.0})
        assert {numbers(mixture.pop(0))[0] for _ in range(50)} == {1}
        assert mixture.stats()["b/pushed"] == 1

    def test_an_empty_buffer_is_named(self) -> None:
        empty = ReplayBuffer(SPEC, ReplayConfig(capacity=4, batch_size=1))
        mixture = Mixture({"empty": (empty, 1.0)})
        with pytest.raises(DeadlineError, match="mixture: 'empty' waited"):
            mixture.pop(0.01)
        mixture.close()
        with pytest.raises(ClosedError):
            mixture.pop()

    def test_nonsense_is_refused(self) -> None:
        buffer = self.filled(0)
        other = ReplayBuffer(
            nested.spec({"x": np.zeros(3)}), ReplayConfig(capacity=1, batch_size=1)
        )
        for buffers, message in (
            ({}, "expected at least one"),
            ({"a": (buffer, -1.0)}, "expected 0 or more"),
            ({"a": (buffer, 0.0)}, "one above 0"),
            ({"a": (buffer, 1.0), "b": (other, 1.0)}, "one layout"),
        ):
            with pytest.raises(ConfigError, match=message):
                Mixture(buffers)
        with pytest.raises(ConfigError, match="expected \\['a'\\], got \\['b'\\]"):
            Mixture({"a": (buffer, 1.0)}).set_weights({"b": 1.0})


def test_neither_torch_nor_ray_is_needed() -> None:
    script = (
        "import sys, numpy as np; from bray_buffer import Buffer, BufferConfig; "
        "from bray_core import nested; s = {'x': np.zeros(3)}; "
        "b = Buffer(nested.spec(s), BufferConfig(batch_size=1)); b.push(s); b.pop(); "
        "sys.exit(', '.join({'ray', 'torch'} & set(sys.modules)) or 0)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_queue_that_is_emptied_takes_memory_only_for_what_was_there_together() -> None:
    ring = SegmentRing(Layout({"x": ArraySpec(np.dtype(np.uint8), (4,))}), 100)
    places = set()
    for first in range(0, 150, 3):
        for value in range(first, first + 3):
            ring.extend(np.full((1, ring.row_bytes), value, np.uint8))
        assert np.concatenate(ring.parts(3))[:, 0].tolist() == [first, first + 1, first + 2]
        places.add(ring.parts(3)[0].ctypes.data)
        ring.drop(2)
        ring.drop(1)
    assert ring.first == 150
    assert len(places) == 1
