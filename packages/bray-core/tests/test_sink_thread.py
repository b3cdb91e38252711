"""Sinks in threads: slow and failing ones never delay a launch."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

import pytest

from bray_core.errors import ConfigError
from bray_core.metrics.axes import Axes
from bray_core.metrics.named_sinks import check_entries, find_sinks
from bray_core.metrics.run_sinks import SinkEnding
from bray_core.metrics.sink_thread import MAX_WAITING, SinkThread


class Gated:
    """Writes nothing until its gate is opened."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.endings: list[SinkEnding] = []

    def write(self, axes: Axes, values: Mapping[str, float]) -> None:
        assert self.gate.wait(60)
        self.rows.append((axes.frames, dict(values)))

    def close(self, ending: SinkEnding) -> None:
        self.endings.append(ending)


def test_a_slow_sink_gets_the_newest_values_and_delays_nothing() -> None:
    sink = Gated()
    thread = SinkThread("gated", lambda: sink)
    for number in range(1000):
        thread.write(Axes(frames=number), {"a": float(number), f"b{number % 3}": float(number)})
    ending = SinkEnding(state="finished", result={"reached": True, "note": "x", "frames": 7})
    thread.end(ending)
    assert not thread.join(0.01), "it waits at its gate, and nobody waits for it"
    sink.gate.set()
    assert thread.join(60)
    assert len(sink.rows) <= 2 * MAX_WAITING, "what a slow sink misses is merged, not kept"
    assert sink.rows[-1][0] == 999
    newest = dict(pair for _, values in sink.rows for pair in values.items())
    assert newest == {"a": 999.0, "b0": 999.0, "b1": 997.0, "b2": 998.0}
    assert sink.endings == [ending]
    assert ending.numbers() == {"result/reached": 1.0, "result/frames": 7.0}


def test_points_are_at_least_so_far_apart() -> None:
    sink = Gated()
    sink.gate.set()
    thread = SinkThread("seldom", lambda: sink, every_s=3600.0)
    thread.write(Axes(frames=1), {"a": 1.0, "b": 1.0})
    thread.write(Axes(frames=2), {"a": 2.0})
    thread.end(SinkEnding())
    assert thread.join(60)
    assert sink.rows == [(2, {"a": 2.0, "b": 1.0})], "the end does not wait for an hour"


@pytest.mark.parametrize("where", ["open", "write", "close"])
def test_a_sink_that_fails_is_logged_and_left_out(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)

    class Failing(Gated):
        def __init__(self) -> None:
            super().__init__()
            if where == "open":
                raise OSError("no server")

        def write(self, axes: Axes, values: Mapping[str, float]) -> None:
            if where == "write":
                raise OSError("no server")

        def close(self, ending: SinkEnding) -> None:
            raise OSError("no server")

    thread = SinkThread("failing", Failing)
    thread.write(Axes(), {"a": 1.0})
    thread.end(SinkEnding())
    assert thread.join(60)
    thread.write(Axes(), {"a": 1.0})
    assert caplog.text.count("sink failing") == 1
    assert "no server" in caplog.text


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ("csv", "sinks: expected a list"),
        ([3], r"sinks\[0\]: expected a name"),
        ([{"a": {}, "b": {}}], r"sinks\[0\]: expected a name such as csv, or one name"),
        ([{"wandb": 3}], "sinks.wandb: expected settings by name, got 3"),
        (["csv", {"csv": None}], r"sinks\[1\]: 'csv' is named twice"),
        ([f"s{i}" for i in range(21)], "sinks: expected 20 at most, got 21"),
    ],
)
def test_what_is_no_list_of_sinks_is_refused(entries: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_entries(entries)  # type: ignore[arg-type]


def test_nothing_is_imported_to_check_a_name() -> None:
    check_entries(["anything", {"else": {"project": "walker"}}])
    with pytest.raises(ConfigError, match=r"sinks\.anything: no sink of this name"):
        find_sinks(["anything"])
