"""Where a launch's metrics are written: TensorBoard events and JSON lines."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from bray_core.json_lines import JsonLinesSink
from bray_core.tensorboard import TensorBoardSink


class Sinks:
    """Writes each gathering of metrics to both sinks, by frames."""

    def __init__(self, launch: Path) -> None:
        self._sinks = (TensorBoardSink(launch), JsonLinesSink(launch / "metrics.jsonl"))

    def write(self, frames: int, values: Mapping[str, float]) -> None:
        """Write values at this number of frames."""
        now = time.time()
        for sink in self._sinks:
            sink.write(frames, values, now)

    def close(self) -> None:
        """Flush and close both."""
        for sink in self._sinks:
            sink.close()
