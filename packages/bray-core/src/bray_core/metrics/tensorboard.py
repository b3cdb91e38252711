"""The TensorBoard sink: event files, written without torch or TensorFlow."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bray_core.errors import MissingExtraError
from bray_core.metrics import sketch
from bray_core.metrics.axes import Axes
from bray_core.metrics.media import Media
from bray_core.metrics.sample import Sample


class Node(NamedTuple):
    """One operation in the graph of a model."""

    name: str
    """Name of the operation, with `/` between its scopes."""
    operation: str
    inputs: tuple[str, ...]
    """Names of the nodes whose outputs the operation takes."""


class TensorBoardSink:
    """Writes an event file in a folder; the x-axis is frames.

    Raises:
        MissingExtraError: The package tensorboard is not installed.
    """

    def __init__(self, directory: Path) -> None:
        try:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:
            raise MissingExtraError("the TensorBoard sink", "bray-core", "tensorboard") from None
        self._writer = EventFileWriter(str(directory))

    def scalars(self, axes: Axes, values: Mapping[str, float]) -> None:
        """Write one scalar per name; values that are not finite are left out."""
        self._write(
            axes,
            [
                {"tag": name, "simple_value": value}
                for name, value in values.items()
                if math.isfinite(value)
            ],
        )

    def histograms(self, axes: Axes, samples: Iterable[Sample]) -> None:
        """Write the distribution of each sample."""
        self._write(axes, [{"tag": s.key, "histo": _histogram(s)} for s in samples if s.bins])

    def show(self, axes: Axes, media: Iterable[Media]) -> None:
        """Write images, videos (as animated GIF) and texts."""
        from tensorboard.plugins.text.summary_v2 import text_pb

        for one in media:
            if one.text is not None:
                self._write(axes, text_pb(one.name, one.text).value)
            else:
                self._write(axes, [{"tag": one.name, "image": _image(one)}])

    def graph(self, nodes: Sequence[Node]) -> None:
        """Write the graph of a model."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.graph_pb2 import GraphDef
        from tensorboard.compat.proto.node_def_pb2 import NodeDef

        made = [NodeDef(name=n.name, op=n.operation, input=n.inputs) for n in nodes]
        graph = GraphDef(node=made).SerializeToString()
        self._writer.add_event(Event(wall_time=time.time(), graph_def=graph))

    def hyperparameters(self, axes: Axes, config: Mapping[str, Any]) -> None:
        """Write a launch's configuration: numbers, texts and switches, by `part.key`."""
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        flat = dict(_flat(config))
        if flat:
            self._write(axes, hparams_pb(flat, start_time_secs=axes.wall_time_s).value)

    def _write(self, axes: Axes, values: Sequence[Any]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        made = [Summary.Value(**v) if isinstance(v, dict) else v for v in values]
        if made:
            wall = axes.wall_time_s
            event = Event(wall_time=wall, step=axes.frames, summary=Summary(value=made))
            self._writer.add_event(event)

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()


def _histogram(sample: Sample) -> dict[str, Any]:
    """Return the fields of a `HistogramProto`: the sketch's bins, and gaps between them."""
    limits: list[float] = []
    counts: list[float] = []
    for number in sorted(sample.bins):
        lower = sketch.upper(number - 1)
        if not limits or limits[-1] < lower:
            limits.append(lower)
            counts.append(0.0)
        limits.append(sketch.upper(number))
        counts.append(float(sample.bins[number]))
    return {
        "min": sample.minimum,
        "max": sample.maximum,
        "num": float(sample.count),
        "sum": sample.total,
        "sum_squares": sum(c * sketch.middle(n) ** 2 for n, c in sample.bins.items()),
        "bucket_limit": limits,
        "bucket": counts,
    }


def _image(media: Media) -> dict[str, Any]:
    """Return the fields of a `Summary.Image`."""
    from PIL import Image

    frames = media.frames
    _, height, width, channels = frames.shape
    pictures = [Image.fromarray(_as_picture(frame)) for frame in frames]
    file = io.BytesIO()
    if len(pictures) == 1:
        pictures[0].save(file, "PNG")
    else:
        pause_ms = max(20, round(1000 / media.frames_per_s))  # browsers slow down what is faster
        pictures[0].save(
            file, "GIF", save_all=True, append_images=pictures[1:], duration=pause_ms, loop=0
        )
    return {
        "height": height,
        "width": width,
        "colorspace": channels,
        "encoded_image_string": file.getvalue(),
    }


def _as_picture(frame: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return frame[..., 0] if frame.shape[-1] == 1 else frame


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, bool | int | float | str):
            yield f"{prefix}{key}", value
        elif value is not None:
            yield f"{prefix}{key}", str(value)
