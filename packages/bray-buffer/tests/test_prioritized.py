"""Priorities: proportions, weights, keys; and what is refused."""

from typing import Any

import numpy as np
import pytest

from bray_buffer import ReplayBuffer, ReplayConfig
from bray_core import nested
from bray_core.errors import ConfigError, SpecError

UNITS = [{"unit": "segment"}, {"unit": "transition"}, {"unit": "sequence", "sequence_length": 2}]


T = 5


def prioritized(steps: Any, **settings: Any) -> ReplayBuffer:
    defaults = {"capacity": 100, "batch_size": 1000, "sampler": "prioritized"}
    config = ReplayConfig(unit="transition", **(defaults | settings))
    return ReplayBuffer(nested.spec(steps(0)), config)


def test_items_are_drawn_by_their_priorities(steps):
    """P(i) = p_i^α / Σ p_k^α; chi-square over 19 degrees of freedom: 60 once in 200,000 seeds."""
    store = prioritized(steps, capacity=20, alpha=0.7, epsilon=0.5, beta=0.4)
    for first in range(0, 40, T):
        store.push(steps(first))
    keys = np.arange(20, 40)
    priorities = np.arange(20.0) ** 2 / 10
    assert store.update_priorities(keys, priorities) == 20
    share = (priorities + 0.5) ** 0.7
    share /= share.sum()
    batches: list[Any] = [store.pop(0).tree for _ in range(40)]
    drawn = np.concatenate([batch["key"] for batch in batches])
    counts = np.bincount(drawn - 20, minlength=20)
    expected = share * len(drawn)
    assert ((counts - expected) ** 2 / expected).sum() < 60
    for batch in batches[:3]:
        assert batch["action"].tolist() == batch["key"].tolist()
        weights = (20 * share[batch["key"] - 20]) ** -0.4
        assert batch["weight"] == pytest.approx(weights / weights.max(), rel=1e-5)


def test_beta_changes_during_the_run(steps):
    store = prioritized(steps, capacity=T, beta=0.0)
    store.push(steps(0))
    store.update_priorities(np.arange(T), np.arange(1.0, T + 1))
    assert set(store.pop(0).tree["weight"].tolist()) == {1.0}
    store.set_beta(1.0)
    batch: Any = store.pop(0).tree
    values = (batch["key"] + 1 + 1e-6) ** 0.6
    assert batch["weight"] == pytest.approx(values.min() / values, rel=1e-5)
    with pytest.raises(ConfigError, match=r"beta: expected 0 to 1, got 1\.1"):
        store.set_beta(1.1)


def test_new_items_have_the_largest_priority(steps):
    store = prioritized(steps, capacity=3 * T, alpha=1.0)
    store.push(steps(0), steps(T))
    store.update_priorities(np.arange(2 * T), np.r_[7.0, np.full(2 * T - 1, 1e-3)])
    store.push(steps(2 * T))
    keys, counts = np.unique(
        np.concatenate([store.pop(0).tree["key"] for _ in range(20)]), return_counts=True
    )
    often = keys[counts > 1000].tolist()  # 1 in 6 of 20,000 each, others 1 in 40,000
    assert often == [0, *range(2 * T, 3 * T)]


@pytest.mark.parametrize("settings", UNITS)
def test_keys_are_of_one_item_for_ever(settings, steps):
    """Old keys stay known as old ones, also when the ring has wrapped many times."""
    segments = 2 if settings["unit"] == "segment" else 2 * T
    config = ReplayConfig(capacity=segments, batch_size=50, sampler="prioritized", **settings)
    store = ReplayBuffer(nested.spec(steps(0)), config)
    seen: set[int] = set()
    last: list[int] = []
    for first in range(0, 50 * T, T):
        store.push(steps(first))
        batch: Any = store.pop(0).tree
        keys = batch["key"].tolist()
        number = batch["action"].reshape(50, -1)[:, 0]
        of = number // T if settings["unit"] == "segment" else number
        assert keys == of.tolist()
        seen |= set(keys)
        last = keys
    old = np.array(sorted(seen - set(last))[:10])
    before = store.pop(0).tree["weight"]
    assert store.update_priorities(old, np.full(10, 1e6)) == 0
    assert store.stats()["stale_priorities"] == 10
    assert set(before.tolist()) == {1.0} == set(store.pop(0).tree["weight"].tolist())
    mixed = np.array([old[0], last[0]])
    assert store.update_priorities(mixed, np.array([0.5, 0.5])) == 1
    assert store.stats()["stale_priorities"] == 11


@pytest.mark.parametrize(
    ("keys", "priorities", "message"),
    [
        ([0, 1], [1.0, -1.0], "priorities: expected finite numbers above 0 .*, got -1.0"),
        ([0, 1], [1.0, np.nan], "priorities: expected finite numbers .*, got nan"),
        ([0, 1], [np.inf, 1.0], "priorities: expected finite numbers .*, got inf"),
        ([0, 1], [1.0], r"priorities: expected 2 numbers \(2,\), got float64 \(1,\)"),
        ([0, 1], ["a", "b"], r"priorities: expected 2 numbers \(2,\), got <U1"),
        ([0, 5], [1.0, 1.0], "keys: expected those of batches, 0 to 4, got 0 to 5"),
        ([-1, 0], [1.0, 1.0], "keys: expected those of batches, 0 to 4, got -1 to 0"),
        ([0.0], [1.0], r"keys: expected integers \(B,\), got float64 \(1,\)"),
    ],
)
def test_what_is_wrong_changes_nothing(keys, priorities, message, steps):
    store = prioritized(steps)
    store.push(steps(0))
    with pytest.raises(SpecError, match=message):
        store.update_priorities(np.array(keys), np.array(priorities))
    assert set(store.pop(0).tree["weight"].tolist()) == {1.0}


def test_a_priority_of_0_needs_an_epsilon(steps):
    store = prioritized(steps, epsilon=0.0)
    store.push(steps(0))
    with pytest.raises(SpecError, match=r"above 0 \(or 0 with epsilon > 0\), got 0.0"):
        store.update_priorities([0], [0.0])
    store = prioritized(steps)
    store.push(steps(0))
    assert store.update_priorities([0], [0.0]) == 1
    assert store.update_priorities(np.zeros(0, int), []) == 0


def test_a_uniform_replay_has_no_priorities(steps):
    config = ReplayConfig(unit="transition", capacity=9, batch_size=1)
    store = ReplayBuffer(nested.spec(steps(0)), config)
    store.push(steps(0))
    with pytest.raises(ConfigError, match='sampler: expected a replay with sampler="prioritized"'):
        store.update_priorities([0], [1.0])
    assert "stale_priorities" not in store.stats()


def test_segments_that_have_a_leaf_weight_are_refused(steps):
    config = ReplayConfig(capacity=2, batch_size=1, sampler="prioritized")
    spec = nested.spec({**steps(0), "weight": np.zeros(5)})
    with pytest.raises(ConfigError, match="prioritized batches add the leaves key and weight"):
        ReplayBuffer(spec, config)
