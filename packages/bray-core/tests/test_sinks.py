from __future__ import annotations

import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bray_core.errors import ConfigError, MissingExtraError
from bray_core.metrics import Registry
from bray_core.metrics.axes import AXES, Axes
from bray_core.metrics.hub import GatheredMetrics
from bray_core.metrics.json_lines import JsonLinesSink, curve, last_axes
from bray_core.metrics.sinks import Sinks
from bray_core.metrics.tensorboard import Node, TensorBoardSink

AT = Axes(frames=30, steps=4, policy_version=2, seconds=1.5, wall_time_s=1000.0)


def gathered(registry: Registry, wall_time_s: float = 1000.0) -> GatheredMetrics:
    samples = registry.drain()
    return GatheredMetrics(samples, registry.snapshot(), registry.take_media(), wall_time_s)


def events(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    made = EventAccumulator(str(folder))
    made.Reload()
    return made


def test_a_line_has_every_axis(tmp_path: Path) -> None:
    sink = JsonLinesSink(tmp_path / "m.jsonl")
    sink.write(AT, {"a": 1.5, "b": math.nan})
    sink.close()
    line = json.loads((tmp_path / "m.jsonl").read_text())
    values = line.pop("values")
    assert values == {"a": 1.5, "b": None}
    assert line == dict(zip(AXES, (30, 4, 2, 1.5, 1000.0), strict=True))


def test_trials_are_laid_over_one_another_by_any_axis(tmp_path: Path) -> None:
    for launch, start in (("1", 10), ("2", 30)):
        folder = tmp_path / "launches" / launch
        folder.mkdir(parents=True)
        sink = JsonLinesSink(folder / "metrics.jsonl")
        for frames in (start, start + 10):
            sink.write(
                Axes(frames=frames, steps=frames // 2, policy_version=frames // 5, seconds=1),
                {"a/x": frames / 100, "a/y": math.inf},
            )
        sink.close()
    with (tmp_path / "launches" / "2" / "metrics.jsonl").open("a") as file:
        file.write('{"frames": 50, "val')  # where a process was killed
    assert curve(tmp_path, "a/x") == ([10, 20, 30, 40], [0.1, 0.2, 0.3, 0.4])
    assert curve(tmp_path, "a/x", "steps")[0] == [5, 10, 15, 20]
    assert curve(tmp_path, "a/x", "policy_version")[0] == [2, 4, 6, 8]
    assert curve(tmp_path, "a/y") == ([], [])
    assert last_axes(tmp_path).frames == 40
    with pytest.raises(ConfigError, match="axis: expected one of frames, steps"):
        curve(tmp_path, "a/x", "time")  # type: ignore[arg-type]


def test_a_launch_goes_on_where_the_one_before_ended(tmp_path: Path) -> None:
    for launch in ("1", "2"):
        folder = tmp_path / "launches" / launch
        folder.mkdir(parents=True)
        registry = Registry()
        sinks = Sinks(folder)
        registry.record("actor/steps", 100, kind="count")
        registry.record("trainer/steps", 7, kind="last")
        sinks.write(gathered(registry))
        registry.record("a/x", 1)
        sinks.write(gathered(registry))
        sinks.close()
    lines = [
        json.loads(line)
        for path in sorted(tmp_path.glob("launches/*/metrics.jsonl"))
        for line in path.read_text().splitlines()
    ]
    assert [line["frames"] for line in lines] == [100, 100, 200, 200]
    assert [line["steps"] for line in lines] == [7, 7, 7, 7]
    assert sorted(lines[0]["values"]) == ["actor/steps", "trainer/steps"]
    assert lines[1]["values"] == {"a/x": 1}, "only what is new"


def test_without_tensorboard_the_lines_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    with pytest.raises(MissingExtraError, match=r"install bray-core\[tensorboard\]"):
        TensorBoardSink(tmp_path)
    folder = tmp_path / "launches" / "1"
    folder.mkdir(parents=True)
    registry = Registry()
    sinks = Sinks(folder)
    for _ in range(2):
        registry.record("a/x", 1)
        sinks.write(gathered(registry))
    sinks.close()
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2
    (said,) = (r.getMessage() for r in caplog.records if r.name.startswith("bray"))
    assert "this launch writes no TensorBoard events" in said


def test_scalars(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    for frames in (1, 2):
        sink.scalars(Axes(frames=frames), {"a/x": frames * 0.5, "b": math.inf})
    sink.close()
    found = events(tmp_path)
    assert [(e.step, e.value) for e in found.Scalars("a/x")] == [(1, 0.5), (2, 1.0)]
    assert found.Tags()["scalars"] == ["a/x"]


def test_histograms_hold_the_values(tmp_path: Path) -> None:
    values = np.random.default_rng(1).normal(0, 3, 5000)
    registry = Registry()
    registry.record("a/x", values)
    sink = TensorBoardSink(tmp_path)
    sink.histograms(AT, registry.drain())
    sink.close()
    (event,) = events(tmp_path).Histograms("a/x")
    step, found = event.step, event.histogram_value
    assert step == 30
    assert found.num == sum(found.bucket) == 5000
    assert (found.min, found.max) == (values.min(), values.max())
    assert found.sum_squares == pytest.approx((values**2).sum(), rel=0.02)
    limits = np.array(found.bucket_limit)
    assert (np.diff(limits) > 0).all()
    below = np.cumsum(found.bucket)
    for limit, count in list(zip(limits, below, strict=True))[::50]:
        assert abs(count - (values <= limit).sum()) <= 1, "rounding at a bound"


def test_images_videos_and_texts(tmp_path: Path) -> None:
    registry = Registry()
    picture = np.random.default_rng(1).integers(0, 256, (4, 6, 3), np.uint8)
    video = np.stack([np.full((8, 6), grey, np.uint8) for grey in (0, 128, 255)])[..., None]
    registry.show("task/map", picture)
    registry.show("task/play", video, frames_per_s=10)
    registry.show("task/note", "**bold**")
    sink = TensorBoardSink(tmp_path)
    sink.show(AT, registry.take_media())
    sink.close()
    found = events(tmp_path)
    (image,) = found.Images("task/map")
    assert (image.step, image.width, image.height) == (30, 6, 4)
    shown = Image.open(io.BytesIO(image.encoded_image_string))
    assert (np.asarray(shown) == picture).all()
    (moving,) = found.Images("task/play")
    animated = Image.open(io.BytesIO(moving.encoded_image_string))
    assert (animated.format, animated.n_frames, animated.info["duration"]) == ("GIF", 3, 100)
    (text,) = found.Tensors("task/note")
    assert text.tensor_proto.string_val == [b"**bold**"]


def test_the_graph(tmp_path: Path) -> None:
    from tensorboard.compat.proto.graph_pb2 import GraphDef

    sink = TensorBoardSink(tmp_path)
    sink.graph([Node("input", "Placeholder", ()), Node("net/linear", "Linear", ("input",))])
    sink.close()
    graph = events(tmp_path).Graph()
    assert isinstance(graph, GraphDef)
    assert [(n.name, n.op, list(n.input)) for n in graph.node] == [
        ("input", "Placeholder", []),
        ("net/linear", "Linear", ["input"]),
    ]


def test_the_configuration_is_hyperparameters(tmp_path: Path) -> None:
    from tensorboard.plugins.hparams import metadata

    sink = TensorBoardSink(tmp_path)
    config = {"trainer": {"rate": 3e-4, "clip": True, "sizes": [3, 4]}, "seed": 1, "no": None}
    sink.hyperparameters(AT, config)
    sink.close()
    content = events(tmp_path).SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    found = metadata.parse_session_start_info_plugin_data(content).hparams
    assert {key: getattr(v, v.WhichOneof("kind")) for key, v in found.items()} == {
        "trainer.rate": 3e-4,
        "trainer.clip": True,
        "trainer.sizes": "[3, 4]",
        "seed": 1,
    }


INSTALLED = """
class Kept:
    rows = []

    def __init__(self, launch, config):
        self.rows.append(("open", launch.name, dict(config)))

    def write(self, axes, values):
        self.rows.append((axes.frames, dict(values)))

    def close(self):
        self.rows.append("closed")


class Broken(Kept):
    def write(self, axes, values):
        raise OSError("no disk")


def absent(launch, config):
    raise ValueError("no server")
"""


def test_sinks_of_other_distributions_are_written_and_never_end_a_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    site, launch = tmp_path / "site", tmp_path / "trial" / "launches" / "one"
    info = site / "acme_sinks-1.dist-info"
    info.mkdir(parents=True)
    launch.mkdir(parents=True)
    (site / "acme_sinks.py").write_text(INSTALLED)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-sinks\nVersion: 1\n")
    names = "kept = acme_sinks:Kept\nbroken = acme_sinks:Broken\nabsent = acme_sinks:absent\n"
    (info / "entry_points.txt").write_text(f"[bray.sinks]\n{names}")
    monkeypatch.syspath_prepend(str(site))
    sinks, registry = Sinks(launch, {"seed": 1}), Registry()
    for number in (1.0, 2.0):
        registry.record("trainer/loss", number)
        sinks.write(gathered(registry))
    sinks.close()
    rows = sys.modules["acme_sinks"].Kept.rows
    assert rows.count(("open", "one", {"seed": 1})) == 2
    written = [row for row in rows if row[0] != "open"]
    assert [row[1] for row in written[:2]] == [{"trainer/loss": 1.0}, {"trainer/loss": 2.0}]
    assert written[2:] == ["closed"], "the broken one was left out"
    assert caplog.text.count("sink broken failed") == 1
    assert "sink absent cannot be opened" in caplog.text
    assert len((launch / "metrics.jsonl").read_text().splitlines()) == 2
