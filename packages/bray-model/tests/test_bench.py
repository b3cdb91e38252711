import errno
import json
import os
import re

import numpy as np
import onnx
import pytest
import torch

from bray_core.cli import main
from bray_core.errors import ExportError
from bray_core.files import output_file
from bray_model import Manifest, Model
from bray_model.export import bench
from bray_model.export.bench import ForwardMeasurement, recommend
from bray_model.export.validate import validate
from bray_model.export_files.agent_file import pack_agent
from bray_model.export_files.manifest import ServeRecommendation, sha256


def measured(*rates, backend="onnxruntime"):
    """(threads, batch, rows/s), … as measurements."""
    return [ForwardMeasurement(backend, t, b, b * 1e6 / rate) for t, b, rate in rates]


@pytest.mark.parametrize(
    ("rates", "threads", "batch"),
    [
        ([(1, 1, 10), (1, 8, 95), (1, 64, 100)], 1, 8),
        ([(1, 1, 10), (1, 8, 80), (1, 64, 100)], 1, 64),
        ([(1, 64, 100), (2, 64, 119)], 1, 64),
        ([(1, 64, 100), (2, 64, 121)], 2, 64),
        ([(1, 64, 100), (2, 64, 121), (4, 64, 140)], 2, 64),
        ([(1, 64, 100), (2, 64, 121), (4, 64, 150)], 4, 64),
    ],
)
def test_the_fewest_threads_and_the_smallest_batch_that_come_near(rates, threads, batch):
    assert recommend(measured(*rates)) == ServeRecommendation(
        num_threads=threads, max_batch_size=batch
    )


@pytest.mark.parametrize(
    ("rate", "agreement", "backend", "batch"),
    [
        (121, {"int8": 0.99}, "int8", 8),
        (119, {"int8": 1.0}, "auto", 64),
        (500, {"int8": 0.989}, "auto", 64),
        (500, {}, "auto", 64),
        (121, {"int8": 1.0, "float16": 1.0}, "float16", 1),
    ],
)
def test_a_quantised_graph_must_decide_alike_and_pay(rate, agreement, backend, batch):
    measurements = [
        *measured((1, 8, 80), (1, 64, 100)),
        *measured((1, 8, rate), (1, 64, rate), backend="int8"),
        *measured((1, 1, 130), backend="float16"),
    ]
    found = recommend(measurements, agreement)
    assert found == ServeRecommendation(num_threads=1, max_batch_size=batch, backend=backend)


def test_bench_measures_nothing_that_it_could_not_note(export_copy, capsys, monkeypatch):
    def refuse(**_):  # root writes everywhere
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(output_file.tempfile, "TemporaryFile", refuse)
    assert main(["bench", str(export_copy), "--seconds", "1000"]) == 2
    printed = capsys.readouterr()
    assert f"cannot write into {export_copy}: Permission denied" in printed.err
    assert "--dry-run writes nothing" in printed.err
    assert printed.out == ""


def test_bench_notes_what_serve_then_takes(export_copy, capsys, monkeypatch):
    monkeypatch.setattr(bench, "BATCH_SIZES", (1, 4))
    before = (export_copy / "manifest.json").read_bytes()
    assert main(["bench", str(export_copy), "--seconds", "0.001", "--dry-run"]) == 0
    assert (export_copy / "manifest.json").read_bytes() == before
    assert main(["bench", str(export_copy), "--seconds", "0.001"]) == 0
    printed = capsys.readouterr().out
    for backend in ("onnxruntime", "after a publish"):
        assert re.search(rf"{backend} +1 +4 +[\d.,]+ +[\d,]+\n", printed)
    found = "recommended here: --backend auto --threads (\\d+) --max-batch-size (\\d+)\n"
    found = re.search(found, printed)
    recommended = Manifest.read(export_copy).recommended
    assert recommended is not None
    assert recommended.max_batch_size in (1, 4)
    assert found is not None
    with Model(export_copy) as model:  # the export is as good as before
        assert model.version == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_threads": 1}, "recommended: expected"),
        ({"num_threads": 0, "max_batch_size": 8}, "recommended/num_threads: expected 1 to 4096"),
        ({"num_threads": 1, "max_batch_size": "8"}, "recommended/max_batch_size: expected 1"),
        ([1], "recommended: expected"),
        (
            {"num_threads": 1, "max_batch_size": 8, "backend": "int4"},
            "recommended/backend: expected auto, int8, int8-dynamic, float16, got 'int4'",
        ),
    ],
)
def test_a_malformed_recommendation_is_refused(export_copy, given, message):
    path = export_copy / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "recommended": given}))
    with pytest.raises(ExportError, match=message):
        Manifest.read(export_copy)


def test_a_recommendation_of_an_earlier_version_is_read(export_copy):
    path = export_copy / "manifest.json"
    given = {"num_threads": 2, "max_batch_size": 8}
    path.write_text(json.dumps({**json.loads(path.read_text()), "recommended": given}))
    assert Manifest.read(export_copy).recommended == ServeRecommendation(**given, backend="auto")


def test_validate_says_what_holds(exported, capsys):
    assert main(["validate", str(exported[0])]) == 0
    printed = capsys.readouterr().out
    assert "all checksums match" in printed
    assert "batches of 1, 2, 7, 64 rows: the same result for each row" in printed
    assert re.search(r"its \d+ weights can be exchanged: the same result", printed)
    assert printed.endswith("valid\n")


def replace_file(folder, name, data):
    (folder / name).write_bytes(data)
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"][name]["sha256"] = sha256(data)
    path.write_text(json.dumps(manifest))


def test_validate_takes_a_packed_agent(exported, capsys, tmp_path):
    agent = tmp_path / "agent.bray"
    pack_agent(agent, {"one": exported[0], "two": exported[0]}, {})
    assert main(["validate", str(agent)]) == 0
    said = capsys.readouterr().out
    assert said.count(f"in {agent}: all checksums match") == 2
    assert said.endswith("valid\n")
    agent.write_bytes(agent.read_bytes()[:-1])
    assert main(["validate", str(agent)]) == 2
    assert "expected an agent file that `bray pack` wrote" in capsys.readouterr().err


def test_validate_finds_a_graph_whose_rows_depend_on_each_other(tmp_path, monkeypatch):
    class Mean(torch.nn.Module):
        def forward(self, x):
            return x - x.mean(0, keepdim=True)

    monkeypatch.setattr("bray_model.export.comparison.check_rows", lambda *given: None)
    folder = tmp_path / "export"
    with Model(Mean(), np.zeros((1, 3), np.float32)) as model:
        model.export(folder)
    with pytest.raises(ExportError, match="another result with 1 rows"):
        list(validate(folder, Manifest.read(folder)))


def test_validate_finds_weights_that_are_not_those_of_the_graph(export_copy, capsys):
    graph = onnx.load_from_string((export_copy / "model.onnx").read_bytes())
    for held in graph.graph.initializer:
        if held.name == "module.logits.weight":
            array = onnx.numpy_helper.to_array(held) * 2
            held.CopyFrom(onnx.numpy_helper.from_array(array, held.name))
    replace_file(export_copy, "model.onnx", graph.SerializeToString())
    assert main(["validate", str(export_copy)]) == 2
    assert "another result with its weights as inputs" in capsys.readouterr().err
