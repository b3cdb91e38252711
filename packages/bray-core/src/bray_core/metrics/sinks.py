"""Where a launch's metrics are written: JSON lines, TensorBoard's events, and installed sinks.

A distribution brings a sink by an entry point of the group `bray.sinks`. A class with a dataclass
`Config` inside is a `RunSink`, written where a run names it (`bray_core.metrics.named_sinks`). Any
other class or function is called with the folder of the launch and its settings, returns a
`MetricSink`, and is written in every launch. Each sink has a thread of its own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from bray_core.errors import MissingExtraError
from bray_core.metrics.axes import Axes
from bray_core.metrics.hub import GatheredMetrics
from bray_core.metrics.json_lines import FILE, JsonLinesSink, last_axes
from bray_core.metrics.named_sinks import GROUP, NamedSink, is_named
from bray_core.metrics.run_sinks import SinkEnding, SinkRun
from bray_core.metrics.sample import Sample
from bray_core.metrics.sink_thread import SinkThread
from bray_core.metrics.tensorboard import Node, TensorBoardSink

_HISTOGRAMS_EVERY_S = 30.0
CLOSE_S = 30.0
"""Seconds that a launch's end waits for all sinks together to write what is left."""

logger = logging.getLogger(__name__)


class MetricSink(Protocol):
    """Something that takes the metrics of a launch as they come."""

    def write(self, axes: Axes, values: Mapping[str, float]) -> None:
        """Take the newest value of each metric that changed, about once a second.

        Args:
            axes: where on each x-axis these values are.
            values: values by key, which is the metric's name with its labels.
        """
        ...

    def close(self) -> None:
        """Write what is left."""
        ...


class Sinks:
    """Writes what the hub gathers; used by one thread at a time.

    Args:
        launch: Folder of the launch, in its trial's `launches`.
        config: Settings of the launch, which TensorBoard shows as hyperparameters.
        named: Sinks that the run names.
    """

    def __init__(
        self,
        launch: Path,
        config: Mapping[str, Any] | None = None,
        named: Sequence[NamedSink] = (),
    ) -> None:
        self._launch = launch
        self._config = config or {}
        self._before = last_axes(launch.parent.parent)
        self._started = time.monotonic()
        self._lines = JsonLinesSink(launch / FILE)
        self._threads = _installed(launch, self._config)
        for sink in named:
            self._threads[sink.name] = _thread_of(sink, launch, self._config)
        self._board: TensorBoardSink | None = None
        self._has_board = True
        self._nodes: list[Node] = []
        self._num_drawn = 0
        self._histograms: dict[str, Sample] = {}
        self._next_histograms = self._started

    def graph(self, nodes: Sequence[Node]) -> None:
        """Add the graph of a model to those that are written with the next metrics."""
        self._nodes += nodes

    def write(self, gathered: GatheredMetrics) -> None:
        """Write the metrics of one poll."""
        seconds = time.monotonic() - self._started
        axes = self._before.after(gathered.values, seconds, gathered.wall_time_s)
        values = {
            s.key: gathered.values[s.key] if s.kind == "count" else s.value
            for s in gathered.samples
        }
        if values:
            counts = [s.key for s in gathered.samples if s.kind == "count"]
            self._lines.write(axes, values, counts)
            for thread in self._threads.values():
                thread.write(axes, values)
        board = self._open_board(axes)
        if board is None:
            return
        if len(self._nodes) > self._num_drawn:
            self._num_drawn = len(self._nodes)
            board.graph(self._nodes[: self._num_drawn])
        board.scalars(axes, values)
        board.show(axes, gathered.media)
        self._write_histograms(board, axes, gathered.samples)

    def _open_board(self, axes: Axes) -> TensorBoardSink | None:
        """Import TensorBoard when there is something to write: it takes a second."""
        if self._board is None and self._has_board:
            try:
                self._board = TensorBoardSink(self._launch)
            except MissingExtraError as error:
                self._has_board = False
                logger.warning("%s: this launch writes no TensorBoard events", error)
            else:
                self._board.hyperparameters(axes, self._config)
        return self._board

    def _write_histograms(
        self, board: TensorBoardSink, axes: Axes, samples: Sequence[Sample]
    ) -> None:
        """Write the distribution of each mean, twice a minute: histograms take room."""
        for sample in samples:
            if sample.kind != "mean":
                continue
            if sample.key in self._histograms:
                self._histograms[sample.key].add(sample)
            else:
                self._histograms[sample.key] = sample.copy()
        if time.monotonic() >= self._next_histograms:
            self._next_histograms = time.monotonic() + _HISTOGRAMS_EVERY_S
            board.histograms(axes, self._histograms.values())
            self._histograms = {}

    def close(self, ending: SinkEnding | None = None) -> None:
        """Flush and close them all; a sink that takes longer than `CLOSE_S` is left behind.

        Args:
            ending: How the launch ended, for the sinks that the run names.
        """
        self._lines.close()
        for thread in self._threads.values():
            thread.end(ending or SinkEnding())
        if self._board is not None:
            self._board.close()
        due = time.monotonic() + CLOSE_S
        for name, thread in self._threads.items():
            if not thread.join(due - time.monotonic()):
                logger.warning(
                    "sink %s has not written all within %g s: it is left behind", name, CLOSE_S
                )


def _thread_of(sink: NamedSink, launch: Path, config: Mapping[str, Any]) -> SinkThread:
    run = SinkRun(sink=sink.name, trial=launch.parent.parent, launch=launch, settings=config)
    return SinkThread(sink.name, partial(sink.open, run), every_s=sink.every_s)


def _installed(launch: Path, config: Mapping[str, Any]) -> dict[str, SinkThread]:
    """Open the sinks that are written in every launch, by name; one that fails is logged."""
    found: dict[str, SinkThread] = {}
    for entry in entry_points(group=GROUP):
        try:
            kind = entry.load()
        except Exception:
            logger.exception(
                "sink %s cannot be imported: this launch does not write to it", entry.name
            )
            continue
        if not is_named(kind):
            found[entry.name] = SinkThread(entry.name, partial(_Unnamed, kind, launch, config))
    return found


class _Unnamed:
    """A sink that is written in every launch, and is not told how the launch ended."""

    def __init__(
        self,
        kind: Callable[[Path, Mapping[str, Any]], MetricSink],
        launch: Path,
        config: Mapping[str, Any],
    ) -> None:
        self._sink = kind(launch, config)

    def write(self, axes: Axes, values: Mapping[str, float]) -> None:
        self._sink.write(axes, values)

    def close(self, ending: SinkEnding) -> None:
        self._sink.close()
