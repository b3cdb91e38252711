"""Transitions against a plain list of steps; every step is told from the others by its number."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bray_buffer import ReplayBuffer, ReplayConfig
from bray_core import nested
from bray_core.errors import CapacityError, ConfigError, SpecError
from bray_core.layout import Layout, Packed

T = 5


def replay(steps: Any, **settings: Any) -> ReplayBuffer:
    defaults: dict[str, Any] = {"capacity": 100, "batch_size": 64}
    config = ReplayConfig(unit="transition", **(defaults | settings))
    return ReplayBuffer(nested.spec(steps(0)), config)


def expected(segment: dict[str, Any], at: int, n: int, gamma: float) -> tuple[float, float, int]:
    """Sum up step by step: the return, the discount, the number of the next observation."""
    length, total = int(segment["length"]), 0.0
    for ahead in range(n):
        total += gamma**ahead * segment["reward"][at + ahead]
        if segment["terminated"][at + ahead]:
            return total, 0.0, -1
        if at + ahead + 1 == length:
            final = int(segment["final_observation"]["y"][0])
            return total, gamma ** (ahead + 1), final
    return total, gamma**n, int(segment["action"][at + n])


SEGMENTS = st.lists(
    st.integers(1, T).flatmap(
        lambda length: st.tuples(st.just(length), st.sets(st.integers(0, length - 1), max_size=2))
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60)
@given(
    SEGMENTS, st.integers(1, 7), st.sampled_from([0.0, 0.5, 1.0]), st.integers(5, 30), st.booleans()
)
def test_what_is_drawn_is_what_was_pushed(steps, made, n, gamma, capacity, as_packed):
    store = replay(steps, capacity=capacity, n_step=n, gamma=gamma)
    layout = Layout(nested.spec(steps(0)))
    by_step: dict[int, tuple[dict[str, Any], int]] = {}
    kept: list[list[int]] = []
    first = 0
    for length, ends in made:
        segment = steps(first, length, tuple(ends))
        store.push(Packed(layout, layout.pack(segment)) if as_packed else segment)
        by_step |= {first + at: (segment, at) for at in range(length)}
        kept.append(list(range(first, first + length)))
        while sum(map(len, kept)) > capacity:
            kept.pop(0)
        first += length
    alive = {step for steps in kept for step in steps}
    assert store.stats()["queued"] == len(alive)
    assert store.stats()["dropped"] == first - len(alive)
    batch: Any = store.pop(0).tree
    assert set(batch["action"].tolist()) <= alive
    for row, step in enumerate(batch["action"].tolist()):
        segment, at = by_step[step]
        assert batch["observation"]["x"][row].tolist() == [step, -step]
        assert batch["observation"]["y"][0][row] == step
        assert batch["terminated"][row] == segment["terminated"][at]
        total, discount, following = expected(segment, at, n, gamma)
        assert batch["reward"][row] == pytest.approx(total, rel=1e-6)
        assert batch["discount"][row] == pytest.approx(discount)
        if discount:  # what follows a terminated step has no meaning
            assert batch["next_observation"]["y"][0][row] == following
            assert batch["next_observation"]["x"][row][0] == following


def test_a_batch_is_one_block_of_the_batch_layout(steps):
    store = replay(steps)
    store.push(steps(0), steps(5))
    batch = store.pop(0)
    assert batch.layout is store.batch_layout
    assert batch.block.shape == (64, store.batch_layout.nbytes)
    assert set(batch.tree) == {
        "observation",
        "next_observation",
        "action",
        "reward",
        "discount",
        "terminated",
    }
    store.push(steps(10))
    assert set(batch.tree["action"].tolist()) <= set(range(10))  # a copy


def test_every_step_is_drawn_equally_often(steps):
    """Pearson's chi-square over 39 degrees of freedom exceeds 89 once in 100,000 seeds."""
    store = replay(steps, capacity=40, batch_size=1000)
    for first in range(0, 60, 5):
        store.push(steps(first))
    drawn = np.concatenate([store.pop(0).tree["action"] for _ in range(40)]) - 20
    counts = np.bincount(drawn, minlength=40)
    assert len(counts) == 40
    assert ((counts - 1000) ** 2 / 1000).sum() < 89


def test_min_size_and_capacity_count_steps(steps):
    store = replay(steps, min_size=7)
    store.push(steps(0))
    with pytest.raises(TimeoutError, match="5 of 7 steps are there"):
        store.pop(0)
    store.push(steps(5))
    assert store.pop(0).tree["action"].max() > 4
    with pytest.raises(ConfigError, match="capacity: expected 5 steps or more, those of one"):
        replay(steps, capacity=4)


@pytest.mark.parametrize("length", [0, 6, -1])
def test_a_length_that_cannot_be_is_refused_whole(length, steps):
    store = replay(steps)
    with pytest.raises(SpecError, match=rf"segment/length: expected 1 to 5 steps, got {length}"):
        store.push(steps(0), {**steps(5), "length": np.array(length, np.int32)})
    assert store.stats()["queued"] == 0


def test_leaves_that_do_not_fit_are_named(steps):
    store = replay(steps)
    for change, message in (
        ({"reward": np.zeros(5)}, r"segment/reward: expected float32 \(5,\), got float64"),
        ({"reward": 0.0}, r"segment/reward: expected float32 \(5,\), got float"),
        ({"more": np.zeros(5)}, "segment/more: unexpected"),
    ):
        with pytest.raises(SpecError, match=message):
            store.push({**steps(0), **change})
    with pytest.raises(SpecError, match="segment/action: missing"):
        store.push({k: v for k, v in steps(0).items() if k != "action"})


def test_a_truncation_within_a_segment_is_refused(steps):
    whole = {**steps(0), "truncated": np.zeros(T, bool)}
    store = ReplayBuffer(
        nested.spec(whole), ReplayConfig(unit="transition", capacity=9, batch_size=1)
    )
    whole["truncated"][-1] = True
    store.push(whole)
    whole["truncated"][2] = True
    with pytest.raises(SpecError, match="segment/truncated: step 3 of 5 ends an episode"):
        store.push(whole)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"action": None}, r"need segments with leaves \['action'\]"),
        ({"key": np.zeros(5)}, r"\['key'\] are leaves of batches"),
        ({"reward": np.zeros((5, 2))}, r"expected reward \[T\]"),
        ({"terminated": np.zeros(5)}, r"expected terminated bool \(5,\), got float64"),
        ({"action": np.zeros(4)}, "every leaf of action to begin with T=5"),
        ({"final_observation": np.zeros(2)}, "expected final_observation to be one observation"),
        ({"length": np.zeros(5)}, "expected length to be one integer"),
    ],
)
def test_layouts_that_have_no_steps_are_refused(change, message, steps):
    segment = {k: v for k, v in {**steps(0), **change}.items() if v is not None}
    with pytest.raises(ConfigError, match=message):
        ReplayBuffer(
            nested.spec(segment), ReplayConfig(unit="transition", capacity=9, batch_size=1)
        )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"unit": "step"}, "unit: expected one of segment, transition, sequence, got 'step'"),
        ({"sampler": "uniforn"}, "did you mean 'uniform'"),
        ({"n_step": 0}, "n_step: expected 1 or more, got 0"),
        ({"n_step": 3}, "n_step: expected it with unit='transition', got 3 with unit='segment'"),
        ({"gamma": 1.5}, r"gamma: expected 0 to 1, got 1\.5"),
        ({"beta": float("nan")}, "beta: expected 0 to 1, got nan"),
        ({"unit": "sequence"}, 'sequence_length: expected it with unit="sequence"'),
        ({"frame_stack": {"observation": 0}}, "frame_stack: expected it with unit='transition' or"),
        ({"samples_per_insert": 4.0}, "expected samples_per_insert and error_margin, or none"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        ReplayConfig(**{"capacity": 10, "batch_size": 1, **settings})


def test_more_memory_than_there_is_names_the_capacity(steps):
    with pytest.raises(CapacityError, match=r"capacity: the system refuses \d{17,} bytes"):
        ReplayBuffer(nested.spec(steps(0)), ReplayConfig(capacity=10**15, batch_size=1))


def plain(first: int, ends: set[int], length: int | None) -> dict[str, Any]:
    """Return a segment of single arrays from a step's number on, with or without a length."""
    numbers = np.arange(first, first + T)
    segment = {
        "action": numbers,
        "observation": np.stack([numbers, -numbers], 1).astype(np.float32),
        "reward": numbers.astype(np.float32),
        "terminated": np.isin(np.arange(T), [*ends]),
        "final_observation": np.array([first + 0.5, 0], np.float32),
    }
    return segment if length is None else segment | {"length": np.array(length)}


GROUPS = st.lists(
    st.lists(st.tuples(st.sets(st.integers(0, T - 1), max_size=2), st.integers(1, T)), max_size=4),
    min_size=1,
    max_size=8,
)


@settings(max_examples=60)
@given(GROUPS, st.integers(T, 33), st.booleans())
def test_several_in_one_push_are_as_if_pushed_one_by_one(groups, capacity, has_length):
    config = ReplayConfig(unit="transition", capacity=capacity, batch_size=64)
    spec = nested.spec(plain(0, set(), T if has_length else None))
    together, apart = ReplayBuffer(spec, config), ReplayBuffer(spec, config)
    first = 0
    for group in groups:
        made = []
        for ends, length in group:
            made.append(plain(first, ends, length if has_length else None))
            first += T
        assert together.push(*made) == len(made)
        for segment in made:
            apart.push(segment)
        assert together.stats() == apart.stats()
        if together.stats()["queued"]:
            ours, theirs = (dict(nested.items(store.pop(0).tree)) for store in (together, apart))
            for path, leaf in theirs.items():
                np.testing.assert_array_equal(ours[path], leaf, path)
