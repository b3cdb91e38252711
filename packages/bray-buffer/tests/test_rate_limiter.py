"""The rate limiter keeps the ratio within its margin, and never stops both sides."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bray_buffer.replay.rate_limiter import RateLimiter
from bray_core.errors import ConfigError, SpecError

rates = st.floats(0.01, 50)
calls = st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=200)


@given(rates, st.floats(0, 100), st.integers(1, 20), st.integers(1, 16), calls)
def test_the_ratio_stays_within_the_margin(rate, extra, min_size, batch_size, order):
    margin = (rate + batch_size) / 2 + extra
    limiter = RateLimiter(rate, margin, min_size, batch_size)
    inserted = sampled = 0
    for is_insert, count in order:
        if is_insert and limiter.can_insert(count):
            limiter.inserted(count)
            inserted += count
        elif not is_insert and limiter.can_sample(count):
            limiter.sampled(count)
            sampled += count
        if inserted <= min_size:
            assert sampled == 0 or inserted == min_size
        else:
            assert abs(rate * (inserted - min_size) - sampled) <= margin + 1e-5


@given(rates, st.integers(1, 20), st.integers(1, 16), st.lists(st.booleans(), max_size=300))
def test_one_side_may_always_go_on(rate, min_size, batch_size, prefer_insert):
    """At the narrowest margin too, whatever the order in which the sides try."""
    limiter = RateLimiter(rate, (rate + batch_size) / 2, min_size, batch_size)
    for first_insert in prefer_insert:
        may_insert, may_sample = limiter.can_insert(1), limiter.can_sample(batch_size)
        assert may_insert or may_sample
        if may_insert and (first_insert or not may_sample):
            limiter.inserted(1)
        else:
            limiter.sampled(batch_size)


@given(rates, st.floats(0, 100), st.integers(1, 20), calls)
def test_insertable_is_the_most_that_may_be_inserted(rate, extra, min_size, order):
    limiter = RateLimiter(rate, (rate + 1) / 2 + extra, min_size)
    for is_insert, count in order:
        most = limiter.insertable()
        assert most == 0 or limiter.can_insert(most)
        assert not limiter.can_insert(most + 1)
        if is_insert:
            limiter.inserted(min(most, count))
        elif limiter.can_sample(count):
            limiter.sampled(count)


def test_the_ratio_is_reached_over_a_long_run():
    limiter = RateLimiter(0.1, 8.0, 100, batch_size=4)
    inserted = sampled = 0
    for _ in range(100_000):
        if limiter.can_sample(4):
            limiter.sampled(4)
            sampled += 4
        elif limiter.can_insert(1):
            limiter.inserted(1)
            inserted += 1
    assert abs(sampled / (inserted - 100) - 0.1) < 1e-3


def test_counters_are_carried_over():
    first, second = (RateLimiter(1.0, 2.0, 1) for _ in range(2))
    first.inserted(3)
    first.sampled(1)
    second.load_state_dict(first.state_dict())
    assert (second.surplus, second.insertable()) == (1.0, 1)
    for state in ({}, {"inserted": 1, "sampled": -1}, {"inserted": 1, "sampled": "2"}):
        with pytest.raises(SpecError, match="rate limiter: expected"):
            second.load_state_dict(state)
    assert second.surplus == 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1.0, 1), "samples_per_insert: expected a number above 0, got 0.0"),
        ((float("nan"), 1.0, 1), "samples_per_insert: expected a number above 0, got nan"),
        ((1.0, 1.0, 0), "min_size: expected 1 or more, got 0"),
        ((1.0, 9.0, 1, 0), "batch_size: expected 1 or more, got 0"),
        ((4.0, 17.9, 1, 32), "error_margin: expected 18 or more, .* got 17.9"),
        ((1.0, float("nan"), 1), "error_margin: expected 1 or more"),
    ],
)
def test_nonsense_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        RateLimiter(*arguments)
