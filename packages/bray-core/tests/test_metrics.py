from __future__ import annotations

import pickle
import threading
from typing import Any

import numpy as np
import pytest

from bray_core.errors import ConfigError
from bray_core.metrics import MAX_MEDIA, Registry


@pytest.mark.parametrize(
    ("kind", "value"), [("mean", 2.0), ("sum", 6.0), ("count", 6.0), ("min", 1.0), ("max", 3.0)]
)
def test_kinds(kind: str, value: float) -> None:
    registry = Registry()
    for number in (1, 3, 2):
        registry.record("a/x", number, kind=kind)  # type: ignore[arg-type]
    assert registry.snapshot() == {"a/x": value}


def test_last_is_the_newest_and_counts_go_on_over_windows() -> None:
    registry = Registry()
    for window in ((5, 4), (3,)):
        for number in window:
            registry.record("last", number, kind="last")
            registry.record("count", number, kind="count")
            registry.record("sum", number, kind="sum")
        snapshot = registry.snapshot()
    assert snapshot == {"last": 3.0, "count": 12.0, "sum": 3.0}
    assert registry.snapshot() == snapshot, "a metric without news keeps its value"


def test_labels_tell_metrics_apart() -> None:
    registry = Registry()
    registry.record("a/x", 1, b="2", a="1")
    registry.record("a/x", 5)
    assert registry.snapshot() == {"a/x": 5.0, "a/x{a=1,b=2}": 1.0}


def test_what_was_drained_elsewhere_is_merged() -> None:
    here, there = Registry(), Registry()
    for registry, numbers in ((here, (1, 2)), (there, (6,))):
        for number in numbers:
            registry.record("mean", number)
            registry.record("min", number, kind="min")
    here.merge(pickle.loads(pickle.dumps(there.drain())))
    assert here.snapshot() == {"mean": 3.0, "min": 1.0}
    assert there.drain() == []


def test_names_are_bounded_and_the_rest_is_counted() -> None:
    registry = Registry(max_names=3)
    for number in range(10):
        registry.record(f"n{number}", 1)
    snapshot = registry.snapshot()
    assert snapshot["metrics/dropped_names"] == 7
    assert len(snapshot) == 4


@pytest.mark.parametrize("kind", ["count", "last"])
def test_names_are_bounded_over_windows_too(kind: str) -> None:
    registry = Registry(max_names=3)
    for number in range(10):
        registry.record(f"n{number}", 1, kind=kind)  # type: ignore[arg-type]
        registry.snapshot()
    snapshot = registry.snapshot()
    assert set(snapshot) == {"n0", "n1", "n2", "metrics/dropped_names"}
    assert snapshot["metrics/dropped_names"] == 7


def test_merging_leaves_the_samples_as_they_are() -> None:
    source, one, other = Registry(), Registry(), Registry()
    source.record("x", 1, kind="sum")
    samples = source.drain()
    one.merge(samples)
    one.record("x", 5, kind="sum")
    other.merge(samples)
    assert other.snapshot() == {"x": 1.0}


def test_snapshots_of_several_threads_lose_nothing() -> None:
    registry = Registry()

    def work() -> None:
        for _ in range(500):
            registry.record("n", 1, kind="count")
            registry.snapshot()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert registry.snapshot() == {"n": 2000.0}


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="kind: expected one of mean, sum"):
        Registry().record("a", 1, kind="median")  # type: ignore[arg-type]


def test_threads_lose_nothing() -> None:
    registry = Registry()

    def work() -> None:
        for _ in range(5000):
            registry.record("n", 1, kind="count")

    threads = [threading.Thread(target=work) for _ in range(4)]
    total = 0.0
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        total += sum(sample.value for sample in registry.drain())
    total += sum(sample.value for sample in registry.drain())
    assert total == 20_000


def test_an_array_counts_by_its_elements() -> None:
    registry = Registry()
    registry.record("a/weights", np.array([[1.0, 2.0], [3.0, 6.0]]))
    registry.record("a/weights", np.float32(8))
    found = registry.query("a/weights", 60)
    assert (found.count, found.total, found.minimum, found.maximum, found.last) == (5, 20, 1, 8, 8)
    assert found.quantile(0.5) == pytest.approx(3, rel=0.01)


def test_a_query_gathers_all_labels_that_have_the_given_ones() -> None:
    registry = Registry()
    for map_, team, value in (("sand", "red", 1), ("sand", "blue", 2), ("ice", "red", 4)):
        registry.record("task/score", value, map=map_, team=team)
    assert registry.query("task/score", 60).total == 7
    assert registry.query("task/score", 60, map="sand").total == 3
    assert registry.query("task/score", 60, team="red", map="ice").last == 4
    assert registry.query("task/score", 60, map="mud").count == 0
    assert registry.query("task/scores", 60).count == 0


def test_labels_count_in_any_order() -> None:
    registry = Registry()
    registry.record("a/x", 1, a="1", b="2")
    registry.record("a/x", 2, b="2", a="1")
    assert registry.snapshot() == {"a/x{a=1,b=2}": 1.5}


def test_long_windows_lose_nothing() -> None:
    registry = Registry()
    for number in range(10_000):
        registry.record("a/x", float(number))
    (sample,) = registry.drain()
    assert (sample.count, sample.total) == (10_000, sum(range(10_000)))
    assert (sample.minimum, sample.maximum, sample.last) == (0, 9999, 9999)
    assert sample.quantile(0.5) == pytest.approx(4999, rel=0.01)


def test_what_is_no_number_shows_and_spoils_no_quantile() -> None:
    registry = Registry()
    registry.record("a/x", np.array([1.0, np.nan, np.inf, -np.inf]))
    found = registry.query("a/x", 60)
    assert np.isnan(found.mean)
    assert found.minimum == -np.inf
    assert found.quantile(0.5) == pytest.approx(1, rel=0.01)


def test_drained_and_snapped_at_the_same_time() -> None:
    registry = Registry()
    registry.record("a/n", 2, kind="count")
    assert registry.snapshot() == {"a/n": 2}
    assert [sample.total for sample in registry.drain()] == [2], "a look takes nothing away"
    registry.record("a/n", 3, kind="count")
    lost = registry.drain()
    registry.record("a/n", 4, kind="count")
    registry.restore(lost)
    assert [sample.total for sample in registry.drain()] == [7]
    assert registry.snapshot() == {"a/n": 9}


def test_a_finaliser_may_record_at_any_time() -> None:
    registry = Registry()
    with registry._folding:  # such as in the middle of a window's end, on the same thread
        for _ in range(5000):
            registry.record("a/x", 1.0)
    with registry._naming:
        registry.record("a/y", 1.0)
    assert {s.name: s.count for s in registry.drain()} == {"a/x": 5000, "a/y": 1}


@pytest.mark.parametrize(
    ("arguments", "labels", "message"),
    [
        (("", 1), {}, "name: expected <component>/<what>"),
        (("a b", 1), {}, "name: expected <component>/<what>"),
        ((7, 1), {}, "name: expected <component>/<what>"),
        (("x" * 201, 1), {}, "name: expected <component>/<what>"),
        (("a/x", "1"), {}, "value: expected a number or an array of them, got '1'"),
        (("a/x", None), {}, "value: expected a number or an array of them, got None"),
        (("a/x", [1, "b"]), {}, "value: expected a number or an array of them"),
        (("a/x", 1), {"map": 3}, "map: expected a short text .* got 3"),
        (("a/x", 1), {"map": "a=b"}, "map: expected a short text"),
        (("a/x", 1), {"worker": "1"}, "worker: is a label of bray's own"),
    ],
)
def test_nonsense_is_refused(arguments: Any, labels: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Registry().record(*arguments, **labels)


def test_a_metric_has_one_kind() -> None:
    registry = Registry()
    registry.record("a/x", 1, kind="sum")
    registry.drain()
    with pytest.raises(ConfigError, match="kind: a/x is recorded as 'sum', got 'mean'"):
        registry.record("a/x", 1)


@pytest.mark.parametrize("window_s", [0, -1, float("nan")])
def test_a_window_that_is_none_is_refused(window_s: float) -> None:
    with pytest.raises(ConfigError, match="window_s: expected more than 0 seconds, got"):
        Registry().query("a/x", window_s)


def test_of_what_is_shown_the_newest_are_kept() -> None:
    registry = Registry()
    for number in range(MAX_MEDIA + 4):
        registry.show("a/text", str(number))
    assert [one.text for one in registry.take_media()] == [str(n) for n in range(4, MAX_MEDIA + 4)]
    registry.show("a/image", np.zeros((4, 5), np.uint8))
    registry.show("a/video", np.zeros((2, 4, 5, 3), np.uint8), frames_per_s=5)
    assert [one.frames.shape for one in registry.take_media()] == [(1, 4, 5, 1), (2, 4, 5, 3)]


@pytest.mark.parametrize(
    ("content", "frames_per_s", "message"),
    [
        (np.zeros((4, 5)), 30, r"content: expected a text or uint8 pixels .* got float64 \(4, 5\)"),
        (np.zeros((4, 5, 2), np.uint8), 30, "content: expected 1, 3 or 4 channels"),
        (np.zeros((0, 5), np.uint8), 30, "content: expected a text or uint8 pixels"),
        (np.zeros((2**13, 2**12), np.uint8), 30, "content: expected 16777216 bytes at most"),
        (np.zeros((4, 5), np.uint8), 0, "frames_per_s: expected more than 0"),
        (3, 30, "content: expected a text or uint8 pixels"),
    ],
)
def test_pictures_that_are_none_are_refused(
    content: Any, frames_per_s: float, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Registry().show("a/b", content, frames_per_s=frames_per_s)


def test_labels_of_a_context_tell_apart_what_a_thread_records():
    registry = Registry()
    with registry.labelled(trainer="hunter"):
        registry.record("trainer/loss", 1.0)
        with registry.labelled(phase="late"):
            registry.record("trainer/loss", 2.0, part="value")
        other = threading.Thread(target=lambda: registry.record("trainer/loss", 5.0))
        other.start()
        other.join()
    registry.record("trainer/loss", 7.0)

    found = {tuple(sorted(s.labels.items())): s.total for s in registry.drain()}
    assert found == {
        (): 12.0,
        (("trainer", "hunter"),): 1.0,
        (("part", "value"), ("phase", "late"), ("trainer", "hunter")): 2.0,
    }
