"""Where a launch's metrics are written: JSON lines, TensorBoard's events, and installed sinks.

Another distribution brings a sink by an entry point of the group `bray.sinks`: a class, or a
function, that is called with the folder of the launch and its settings and returns a `MetricSink`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from bray_core.errors import MissingExtraError
from bray_core.metrics.axes import Axes
from bray_core.metrics.hub import GatheredMetrics
from bray_core.metrics.json_lines import FILE, JsonLinesSink, last_axes
from bray_core.metrics.sample import Sample
from bray_core.metrics.tensorboard import Node, TensorBoardSink

_HISTOGRAMS_EVERY_S = 30.0

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
    """

    def __init__(self, launch: Path, config: Mapping[str, Any] | None = None) -> None:
        self._launch = launch
        self._config = config or {}
        self._before = last_axes(launch.parent.parent)
        self._started = time.monotonic()
        self._lines = JsonLinesSink(launch / FILE)
        self._installed = _installed(launch, self._config)
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
            for name in list(self._installed):
                self._guarded(name, lambda sink: sink.write(axes, values))
        board = self._open_board(axes)
        if board is None:
            return
        if len(self._nodes) > self._num_drawn:
            self._num_drawn = len(self._nodes)
            board.graph(self._nodes[: self._num_drawn])
        board.scalars(axes, values)
        board.show(axes, gathered.media)
        self._write_histograms(board, axes, gathered.samples)

    def _guarded(self, name: str, use: Callable[[MetricSink], None]) -> None:
        """Use an installed sink; one that fails is left out from then on: training goes on."""
        try:
            use(self._installed[name])
        except Exception:
            logger.exception("sink %s failed: this launch writes no more to it", name)
            del self._installed[name]

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

    def close(self) -> None:
        """Flush and close them all."""
        self._lines.close()
        for name in list(self._installed):
            self._guarded(name, lambda sink: sink.close())
        if self._board is not None:
            self._board.close()


def _installed(launch: Path, config: Mapping[str, Any]) -> dict[str, MetricSink]:
    """Open the sinks that other distributions bring, by name; one that fails is logged."""
    found: dict[str, MetricSink] = {}
    for entry in entry_points(group="bray.sinks"):
        try:
            found[entry.name] = entry.load()(launch, config)
        except Exception:
            logger.exception(
                "sink %s cannot be opened: this launch does not write to it", entry.name
            )
    return found
