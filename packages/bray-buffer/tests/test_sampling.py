"""Replay and mixture draw as they should; tolerances are stated where they are used."""

import numpy as np
import pytest

from bray_buffer import Buffer, BufferConfig, Mixture, ReplayBuffer, ReplayConfig
from bray_core import protocols
from bray_core.errors import ClosedError, ConfigError, DeadlineError


@pytest.fixture
def replay(layout, segment):
    def replay(*numbers, **settings):
        config = ReplayConfig(**{"capacity": len(numbers), "batch_size": 1, **settings})
        made = ReplayBuffer(layout, config)
        made.push(*map(segment, numbers))
        return made

    return replay


def test_both_are_buffers(replay):
    assert isinstance(replay(0), protocols.BufferProtocol)
    assert isinstance(Mixture({"a": (replay(0), 1)}), protocols.BufferProtocol)


def test_each_segment_is_drawn_equally_often(replay):
    """Pearson's chi-square over 49 degrees of freedom exceeds 102 once in 100,000 seeds."""
    size, draws = 50, 50_000
    store = replay(*range(size + 30), capacity=size, batch_size=draws)  # the ring has wrapped
    counts = np.bincount(store.pop(0).tree["number"] - 30, minlength=size)
    expected = draws / size
    assert ((counts - expected) ** 2 / expected).sum() < 102


def test_draws_are_independent(replay):
    """Two draws of 10 agree once in 10; ±4 standard errors of 20,000 pairs."""
    first, second = replay(*range(10), batch_size=40_000).pop(0).tree["number"].reshape(-1, 2).T
    assert abs((first == second).mean() - 0.1) < 4 * np.sqrt(0.1 * 0.9 / 20_000)


def test_a_batch_is_a_copy(replay, segment, numbers):
    store = replay(1, batch_size=2)
    batch = store.pop(0)
    store.push(segment(2))
    assert numbers(batch) == [1, 1]


def test_a_push_longer_than_the_replay_leaves_the_newest(replay, segment, numbers):
    store = replay(0, capacity=3, batch_size=100)
    assert store.push(*map(segment, range(1, 9))) == 8
    assert set(numbers(store.pop(0))) == {6, 7, 8}
    assert store.stats()["dropped"] == 6


def test_a_closed_replay_ends_its_iterators(replay, segment):
    store = replay(0)
    batches = iter(store)
    next(batches)
    store.close()
    assert list(batches) == []
    with pytest.raises(ClosedError):
        store.push(segment(1))


def test_an_empty_buffer_keeps_its_share(replay, layout, segment, numbers):
    empty = Buffer(layout, BufferConfig(batch_size=1))
    mixture = Mixture({"full": (replay(0), 1), "empty": (empty, 1)}, seed=0)

    def pop_until_empty():
        while True:
            assert numbers(mixture.pop(0)) == [0]

    with pytest.raises(DeadlineError, match=r"mixture: 'empty' waited 0.0 s: .* 0 of 1 segments"):
        pop_until_empty()
    for _ in range(5):
        with pytest.raises(DeadlineError):
            mixture.pop(0)
    empty.push(segment(1))
    assert numbers(mixture.pop(0)) == [1]


def test_a_mixture_of_one_seed_draws_the_same(replay, numbers):
    def draws(seed):
        mixture = Mixture({"a": (replay(0), 1), "b": (replay(1), 1)}, seed)
        return [numbers(mixture.pop(0)) for _ in range(50)]

    assert draws(3) == draws(3) != draws(4)


def test_a_mixture_ends_its_iterators(replay):
    mixture = Mixture({"a": (replay(0), 1)})
    batches = iter(mixture)
    next(batches)
    mixture.close()
    assert list(batches) == []


def test_a_mixture_refuses_pushes_and_weights_that_are_no_numbers(replay, segment):
    with pytest.raises(ConfigError, match="mixture: push to one of its buffers instead: a"):
        Mixture({"a": (replay(0), 1)}).push(segment(0))
    for weight in (float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="weights: expected 0 or more and one above 0"):
            Mixture({"a": (replay(0), weight)})
