"""The TensorBoard sink: scalars as event files, written without torch or TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from bray_core.errors import MissingExtraError


class TensorBoardSink:
    """Writes scalars to an event file in a folder.

    Raises:
        MissingExtraError: tensorboard is not installed.
    """

    def __init__(self, directory: Path) -> None:
        try:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:
            raise MissingExtraError("the TensorBoard sink", "bray-core", "tensorboard") from None
        self._writer = EventFileWriter(str(directory))

    def write(self, step: int, values: Mapping[str, float], wall_time_s: float) -> None:
        """Write one scalar per name at `step`; values that are not finite are left out."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        summary = Summary(
            value=[
                Summary.Value(tag=name, simple_value=value)
                for name, value in values.items()
                if math.isfinite(value)
            ]
        )
        self._writer.add_event(Event(wall_time=wall_time_s, step=step, summary=summary))

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()
