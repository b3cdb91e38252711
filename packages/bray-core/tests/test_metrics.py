from __future__ import annotations

import json
import math
import pickle
import sys
import threading
from pathlib import Path

import pytest

from bray_core.errors import ConfigError, MissingExtraError
from bray_core.json_lines import JsonLinesSink
from bray_core.metrics import Registry
from bray_core.tensorboard import TensorBoardSink


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
    one.record("x", 5)
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


def test_without_tensorboard_the_sink_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    with pytest.raises(MissingExtraError, match=r"install bray-core\[tensorboard\]"):
        TensorBoardSink(tmp_path)


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


def test_the_json_lines_sink(tmp_path: Path) -> None:
    sink = JsonLinesSink(tmp_path / "m.jsonl")
    sink.write(3, {"a": 1.5, "b": math.nan}, 10.0)
    sink.close()
    line = json.loads((tmp_path / "m.jsonl").read_text())
    assert line == {"step": 3, "wall_time_s": 10.0, "values": {"a": 1.5, "b": None}}


def test_the_tensorboard_sink(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink = TensorBoardSink(tmp_path)
    for step in (1, 2):
        sink.write(step, {"a/x": step * 0.5, "b": math.inf}, 10.0)
    sink.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("a/x")] == [(1, 0.5), (2, 1.0)]
    assert events.Tags()["scalars"] == ["a/x"]
