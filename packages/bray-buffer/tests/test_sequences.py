"""Sequences against slices of the segments that were pushed."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bray_buffer import ReplayBuffer, ReplayConfig
from bray_core import nested

T = 6


def make(first: int, length: int = T, ends: tuple[int, ...] = ()) -> dict[str, Any]:
    steps = np.arange(first, first + T, dtype=np.int64)
    terminated = np.zeros(T, bool)
    terminated[list(ends)] = True
    return {
        "observation": steps.astype(np.float32),
        "action": steps,
        "reward": np.ones(T, np.float32),
        "terminated": terminated,
        "final_observation": np.float32(first + length),
        "length": np.array(length, np.int32),
        "state": np.full((2, 3), first, np.float32),
    }


def replay(**settings: Any) -> ReplayBuffer:
    return ReplayBuffer(nested.spec(make(0)), ReplayConfig(unit="sequence", **settings))


def starts(length: int, ends: set[int], wanted: int) -> dict[int, tuple[int, int]]:
    """Steps of a segment at which a sequence may begin to train → its episode's part."""
    found = {}
    begin = 0
    for stop in sorted({end + 1 for end in ends} | {length}):
        for step in range(begin, max(begin, stop - wanted) + 1):
            found[step] = (begin, stop)
        begin = stop
    return found


@settings(max_examples=50)
@given(
    st.lists(
        st.integers(1, T).flatmap(
            lambda length: st.tuples(
                st.just(length), st.sets(st.integers(0, length - 1), max_size=2)
            )
        ),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 7),
    st.integers(0, 4),
    st.integers(6, 20),
)
def test_sequences_are_parts_of_episodes(made, wanted, burn_in, capacity):
    store = replay(capacity=capacity, batch_size=100, sequence_length=wanted, burn_in=burn_in)
    kept: list[tuple[int, int, set[int]]] = []
    for number, (length, ends) in enumerate(made):
        store.push(make(100 * number, length, tuple(ends)))
        kept.append((100 * number, length, ends))
        while sum(length for _, length, _ in kept) > capacity:
            kept.pop(0)
    possible = {
        first + step: (first, first + begin, first + stop, first + length)
        for first, length, ends in kept
        for step, (begin, stop) in starts(length, ends, wanted).items()
    }
    batch: Any = store.pop(0).tree
    assert batch["action"].shape == (100, burn_in + wanted)
    for row in range(100):
        start = int(batch["action"][row, burn_in])
        first, begin, stop, end = possible[start]
        numbers = start + np.arange(-burn_in, wanted)
        valid = (numbers >= begin) & (numbers < stop)
        assert batch["mask"][row].tolist() == valid.tolist()
        assert batch["action"][row].tolist() == np.where(valid, numbers, 0).tolist()
        assert batch["observation"][row].tolist() == np.where(valid, numbers, 0).tolist()
        assert np.all(batch["state"][row] == first)
        last = numbers[valid][-1]
        if last + 1 == end or last + 1 < stop:  # after a part that terminates it has no meaning
            assert batch["final_observation"][row] == last + 1


def test_every_start_is_drawn_equally_often():
    """Pearson's chi-square over 11 degrees of freedom exceeds 45 once in 200,000 seeds."""
    store = replay(capacity=18, batch_size=500, sequence_length=3)
    for first in range(0, 60, 6):
        store.push(make(first))
    drawn = np.concatenate([store.pop(0).tree["action"][:, 0] for _ in range(24)])
    starts, counts = np.unique(drawn, return_counts=True)
    assert starts.tolist() == [first + step for first in (42, 48, 54) for step in range(4)]
    assert ((counts - 1000) ** 2 / 1000).sum() < 45


def test_whole_episodes():
    store = replay(capacity=12, batch_size=50, sequence_length=T)
    store.push(make(0), make(10, 4, (3,)))
    batch: Any = store.pop(0).tree
    rows = {tuple(row) for row in batch["action"].tolist()}
    assert rows == {(0, 1, 2, 3, 4, 5), (10, 11, 12, 13, 0, 0)}
    assert batch["mask"].sum(1).tolist() == [6 if row[0] == 0 else 4 for row in batch["action"]]


def test_priorities_are_of_the_first_trained_step():
    store = replay(
        capacity=12, batch_size=400, sequence_length=3, burn_in=1, sampler="prioritized", alpha=1.0
    )
    store.push(make(0), make(6))
    batch: Any = store.pop(0).tree
    assert batch["key"].tolist() == batch["action"][:, 1].tolist()
    assert sorted(set(batch["key"].tolist())) == [0, 1, 2, 3, 6, 7, 8, 9]
    keys = np.array([0, 1, 2, 3, 6, 7, 8, 9])
    store.update_priorities(keys, np.where(keys == 7, 1.0, 1e-9))
    assert (store.pop(0).tree["key"] == 7).mean() > 0.9
    with pytest.raises(ValueError, match="keys: expected those of batches, got one that cannot"):
        store.update_priorities([4], [1.0])
