"""Segments acted with too old a policy are dropped and counted, wherever they are."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bray_buffer import Buffer, BufferConfig
from bray_core import nested
from bray_core.errors import ConfigError, SpecError

T = 3


def make(number, versions, length=T):
    return {
        "number": np.array(number),
        "policy_version": np.array(versions, np.int64),
        "length": np.array(length, np.int32),
    }


SPEC = nested.spec(make(0, [0] * T))


def queue(max_policy_lag=2, **settings):
    if "batch_steps" not in settings:
        settings.setdefault("batch_size", 1)
    return Buffer(SPEC, BufferConfig(max_policy_lag=max_policy_lag, **settings))


def numbers(buffer):
    got = []
    while buffer.stats()["queued"]:
        got += buffer.pop(0).tree["number"].tolist()
    return got


def test_the_oldest_valid_step_counts(recorded):
    buffer = queue()
    buffer.set_policy_version(10)
    segments = [
        make(0, [8, 9, 10]),
        make(1, [7, 10, 10]),
        make(2, [9, 9, 0], length=2),  # the padding is no step
        make(3, [11, 11, 11]),  # newer than known
    ]
    assert buffer.push(*segments) == 4
    assert buffer.stats()["stale"] == recorded()["buffer/stale_segments"] == 1
    assert numbers(buffer) == [0, 2, 3]


def test_what_is_queued_grows_stale(recorded):
    buffer = queue(capacity=8, batch_size=2)
    buffer.push(*(make(n, [0] * T) for n in range(6)))
    buffer.pop(0)  # the ring begins in its middle
    versions = [5, 1, 3, 2]
    buffer.push(*(make(6 + i, [v] * T) for i, v in enumerate(versions)))
    buffer.set_policy_version(4)
    assert buffer.stats() == {"pushed": 10, "popped": 2, "dropped": 0, "stale": 5, "queued": 3}
    assert recorded()["buffer/stale_segments"] == 5
    assert buffer.pop(0).tree["number"].tolist() == [6, 8]
    buffer.set_policy_version(40)
    assert buffer.stats()["queued"] == 0


@given(
    st.lists(
        st.one_of(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.integers(0, 9)),
        max_size=20,
    )
)
def test_it_does_what_a_list_would(calls):
    """A list of versions is pushed; a number is the newest version."""
    buffer = queue(capacity=5, batch_steps=100)
    expected, newest, pushed, stale, dropped = [], 0, 0, 0, 0
    for call in calls:
        if isinstance(call, int):
            newest = call
            buffer.set_policy_version(newest)
            kept = [pair for pair in expected if newest - pair[1] <= 2]
            stale += len(expected) - len(kept)
            expected = kept
            continue
        buffer.push(*(make(pushed + i, [v] * T) for i, v in enumerate(call)))
        for version in call:
            if newest - version > 2:
                stale += 1
            else:
                dropped += len(expected) == 5
                expected = [*expected, (pushed, version)][-5:]
            pushed += 1
    stats = buffer.stats()
    assert stats["queued_steps"] == T * len(expected)
    assert (stats["pushed"], stats["stale"], stats["dropped"]) == (pushed, stale, dropped)
    buffer.set_policy_version(newest)
    with buffer._lock.mutex:
        rows = np.concatenate(buffer._queue.ring.parts(buffer._queue.ring.size))
    assert buffer.layout.views(rows)["number"].tolist() == [n for n, _ in expected]


def test_room_made_by_staleness_lets_a_producer_go_on():
    buffer = queue(capacity=2, when_full="block")
    buffer.push(make(0, [0] * T), make(1, [5] * T))
    more = (make(2, [0] * T), make(3, [6] * T))
    producer = threading.Thread(target=lambda: buffer.push(*more, wait=True, timeout_s=30))
    producer.start()
    pause = threading.Event()
    while not buffer._lock.num_waiting:
        pause.wait(0.001)
    buffer.set_policy_version(6)
    producer.join(30)
    assert numbers(buffer) == [1, 3]
    assert buffer.stats()["stale"] == 2


def test_the_version_is_part_of_the_state():
    first, second = queue(), queue()
    first.set_policy_version(7)
    second.load_state_dict(first.state_dict())
    second.push(make(0, [4] * T))
    assert second.stats()["stale"] == 1
    with pytest.raises(SpecError, match=r"expected a state with policy_version, got \['other'\]"):
        second.load_state_dict({"other": 1})


def test_a_queue_without_a_bound_keeps_all():
    buffer = queue(max_policy_lag=None)
    buffer.set_policy_version(100)
    buffer.push(make(0, [0] * T))
    assert "stale" not in buffer.stats()
    assert numbers(buffer) == [0]


def test_nonsense_is_refused():
    with pytest.raises(ConfigError, match="max_policy_lag: expected 0 or more, got -1"):
        queue(-1)
    spec = nested.spec({"reward": np.zeros(3)})
    message = "max_policy_lag: needs segments with an integer leaf `policy_version`"
    with pytest.raises(ConfigError, match=message):
        Buffer(spec, BufferConfig(batch_size=1, max_policy_lag=1))
