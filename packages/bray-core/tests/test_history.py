from __future__ import annotations

from bray_core.metrics.history import History
from bray_core.metrics.sample import Sample


def sample(value: float, name: str = "a/x") -> Sample:
    made = Sample(name)
    made.add_values([value])
    return made


def test_windows_that_ended_in_time_count_whole() -> None:
    history = History()
    for second in range(10):
        history.add([sample(second)], second, second + 1)
    assert history.query("a/x", {}, since=7.0).total == 7 + 8 + 9
    assert history.query("a/x", {}, since=7.5).total == 7 + 8 + 9
    assert history.query("a/x", {}, since=10).count == 0
    assert history.gather(since=8)["a/x"].last == 9


def test_memory_is_bounded_and_nothing_is_lost() -> None:
    history = History(max_windows=16)
    for second in range(5000):
        history.add([sample(second), sample(1, f"a/{second % 3}")], second, second + 1)
        assert len(history) <= 16
    whole = history.query("a/x", {}, since=0)
    assert (whole.count, whole.total) == (5000, sum(range(5000)))
    assert sum(history.query(f"a/{i}", {}, since=0).count for i in range(3)) == 5000
    assert history.query("a/x", {}, since=4992).total == sum(range(4992, 5000)), "the newest: exact"


def test_a_query_leaves_the_history_as_it_is() -> None:
    history = History()
    history.add([sample(1)], 0, 1)
    history.query("a/x", {}, 0).add(sample(5))
    history.gather(0)["a/x"].add(sample(5))
    assert history.query("a/x", {}, 0).total == 1
