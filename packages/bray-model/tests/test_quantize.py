"""Graphs in fewer bits: right, added whole or not at all, refused where they do not belong."""

import json
import logging
import re
import sys

import numpy as np
import onnxruntime
import pytest
import torch

from bray_core.errors import ConfigError, ExportError, MissingExtraError, SpecError
from bray_model import Manifest, Model, ModelConfig
from bray_model.export.export_folder import read_report
from bray_model.export.export_report import OutputAgreement
from bray_model.export.quantize import quantize
from bray_model.export_files.manifest import QUANTIZED, check_files


class Atari(torch.nn.Module):
    """The usual CNN of Atari agents, on pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(4, 32, 8, 4),
            torch.nn.ReLU(),
            torch.nn.Conv2d(32, 64, 4, 2),
            torch.nn.ReLU(),
            torch.nn.Conv2d(64, 64, 3, 1),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
            torch.nn.Linear(3136, 512),
            torch.nn.ReLU(),
        )
        self.logits = torch.nn.Linear(512, 6)
        self.value = torch.nn.Linear(512, 1)

    def forward(self, pixels):
        h = self.body(pixels.float() / 255)
        return {"logits": self.logits(h), "value": self.value(h)[:, 0]}


class Memory(torch.nn.Module):
    """An LSTM whose state goes in and out."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = torch.nn.LSTM(4, 16, batch_first=True)
        self.head = torch.nn.Linear(16, 3)

    def forward(self, x, state):
        before = tuple(leaf.transpose(0, 1).contiguous() for leaf in state)
        out, after = self.cell(x[:, None], before)
        return {"logits": self.head(out[:, 0]), "state": [leaf.transpose(0, 1) for leaf in after]}


def mlp():
    return torch.nn.Sequential(
        torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Linear(64, 2)
    )


def images(rows, seed):
    """Patches of light, as a game has them, not noise."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (rows, 4, 7, 7), np.uint8)
    return (coarse.repeat(12, axis=2).repeat(12, axis=3),)


def normal(*shapes):
    def draw(rows, seed):
        rng = np.random.default_rng(seed)
        return tuple(rng.standard_normal((rows, *shape)).astype(np.float32) for shape in shapes)

    return draw


def remembered(rows, seed):
    x, h, c = normal((4,), (1, 16), (1, 16))(rows, seed)
    return x, (np.tanh(h), c)


NETWORKS = {"atari": (Atari, images), "mlp": (mlp, normal((4,))), "lstm": (Memory, remembered)}


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """Network → the folder of its export, made once; tests copy it."""
    folder = tmp_path_factory.mktemp("exports")
    for name, (network, draw) in NETWORKS.items():
        torch.manual_seed(0)
        with Model(network(), draw(1, 0), name=name) as model:
            model.export(folder / name)
    return folder


@pytest.fixture
def export(exports, tmp_path):
    """Network → a copy of its export."""

    def copy(name):
        (tmp_path / name).mkdir()
        for file in (exports / name).iterdir():
            (tmp_path / name / file.name).write_bytes(file.read_bytes())
        return tmp_path / name

    return copy


def content(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def logits(folder, backend, inputs):
    with Model(folder, config=ModelConfig(backend=backend, max_batch_size=512)) as model:
        outputs = model(*inputs, batch=True)
    return outputs["logits"] if isinstance(outputs, dict) else outputs


@pytest.mark.parametrize("name", ["mlp", "lstm", pytest.param("atari", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("kind", "error"), [("int8", 0.1), ("int8-dynamic", 0.1), ("float16", 0.01)]
)
def test_a_quantised_graph_answers_nearly_as_the_float_one(export, caplog, name, kind, error):
    folder, draw = export(name), NETWORKS[name][1]
    batches = [draw(24, seed) for seed in range(4)]
    report = quantize(folder, kind, iter(batches))
    assert not [
        record
        for record in caplog.records
        if record.levelno >= logging.WARNING and record.name != "asyncio"
    ]
    held_out = ("held-out calibration", 24)  # `int8` took its ranges from the others
    rows = held_out if kind == "int8" else ("calibration", 96)
    assert (report.kind, report.inputs, report.num_rows) == (kind, *rows)
    assert report.share is not None
    assert 0 < report.share <= 1
    got = np.concatenate([logits(folder, kind, batch) for batch in batches])
    want = np.concatenate([logits(folder, "auto", batch) for batch in batches])
    assert 0 < np.abs(got - want).max() < error * np.abs(want).max()
    agreement = (got.argmax(-1) == want.argmax(-1)).mean()
    assert agreement >= 0.95
    (found,) = [each for each in report.outputs if each.name in ("outputs", "outputs/logits")]
    if kind == "float16":  # onnxruntime rounds less on a CPU than the report says
        assert found.max_abs_error < error * np.abs(want).max()
    elif kind == "int8-dynamic":
        assert found.agreement == pytest.approx(agreement)
        assert found.max_abs_error == pytest.approx(np.abs(got - want).max(), rel=1e-4)
    assert read_report(folder).quantized == (report,)
    assert report.table() in read_report(folder).table()
    assert check_files(folder).version == 0


@pytest.mark.parametrize(
    ("kind", "share"), [("int8", 0.3), ("int8-dynamic", 0.3), ("float16", 0.6)]
)
def test_its_weights_have_fewer_bits_and_its_tensors_their_names_and_dtypes(export, kind, share):
    folder = export("atari")
    quantize(folder, kind, [images(8, 0)])
    before, after = (folder / file for file in ("model.onnx", QUANTIZED[kind]))
    assert after.stat().st_size < share * before.stat().st_size

    def tensors(path):
        session = onnxruntime.InferenceSession(path.read_bytes())
        return [
            sorted((each.name, each.type, *each.shape[1:]) for each in side)
            for side in (session.get_inputs(), session.get_outputs())
        ]

    assert tensors(after) == tensors(before)


def test_without_calibration_it_is_compared_on_random_inputs_with_pixels_among_them(export):
    report = quantize(export("atari"), "int8-dynamic")
    assert (report.inputs, report.num_rows) == ("random", 256)
    (logits,) = [output for output in report.outputs if output.name == "outputs/logits"]
    assert logits.max_abs_error > 0
    folder = export("mlp")
    assert quantize(folder, "int8-dynamic").agreement >= 0.95


def test_indices_are_zeros_where_the_graph_refuses_larger_ones(tmp_path):
    with Model(torch.nn.Embedding(3, 2), np.zeros((1,), np.int64)) as model:
        model.export(tmp_path / "export")
    assert quantize(tmp_path / "export", "float16").num_rows == 256


def test_a_second_kind_joins_and_a_second_time_replaces(export):
    folder = export("mlp")
    (folder / "notes.txt").write_text("mine")
    for kind in ("int8-dynamic", "float16", "float16"):
        quantize(folder, kind, [normal((4,))(64, 0)])
    assert [each.kind for each in read_report(folder).quantized] == ["int8-dynamic", "float16"]
    assert {"int8-dynamic.onnx", "float16.onnx", "model.onnx", "notes.txt"} <= set(content(folder))
    assert [entry.name for entry in folder.parent.iterdir()] == ["mlp"]
    with Model(folder) as model:  # still takes weights
        assert model.publish(model.weights()[1]) == 1


def test_a_link_to_an_export_stays_a_link(export, tmp_path):
    folder = export("mlp")
    (tmp_path / "newest").symlink_to(folder)
    quantize(tmp_path / "newest", "float16")
    assert (tmp_path / "newest").is_symlink()
    assert (folder / "float16.onnx").is_file()


def test_its_weights_are_fixed_and_publish_says_so(export):
    folder = export("mlp")
    quantize(folder, "int8-dynamic")
    with Model(folder) as model:
        weights = model.weights()[1]
    message = r"weights of backend='int8-dynamic' are fixed: .* export the new ones and quantize"
    with Model(folder, config=ModelConfig(backend="int8-dynamic")) as model:
        with pytest.raises(ConfigError, match=message):
            model.publish(weights)
        with model.clone() as clone:
            row = np.ones(4, np.float32)
            np.testing.assert_array_equal(clone(row), model(row))


@pytest.mark.parametrize("how", ["truncated", "foreign"])
def test_a_graph_that_was_not_made_from_it_is_refused(export, tmp_path, how):
    folder = export("mlp")
    quantize(folder, "float16")
    other = export("lstm")
    quantize(other, "float16")
    data = (other if how == "foreign" else folder) / "float16.onnx"
    (folder / "float16.onnx").write_bytes(data.read_bytes()[: -1 if how == "truncated" else None])
    with pytest.raises(ExportError, match=r"float16.onnx: its \d+ bytes do not have the checksum"):
        Model(folder, config=ModelConfig(backend="float16"))
    with Model(folder) as model:
        assert model(np.ones(4, np.float32)).shape == (2,)


def test_a_listed_graph_of_another_signature_is_refused(export):
    folder, other = export("mlp"), export("lstm")
    quantize(other, "float16")
    quantize(folder, "float16")
    data = (other / "float16.onnx").read_bytes()
    (folder / "float16.onnx").write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_text())
    digest = Manifest.read(other).files["float16.onnx"]
    manifest["files"]["float16.onnx"]["sha256"] = digest
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ExportError, match=r"float16.onnx: expected the inputs \['inputs\[0\]'\]"):
        Model(folder, config=ModelConfig(backend="float16"))


@pytest.mark.parametrize(
    ("kind", "calibration", "error", "message"),
    [
        (
            "int4",
            None,
            ConfigError,
            "kind: expected one of int8, int8-dynamic, float16, got 'int4'",
        ),
        ("int8", None, ConfigError, "calibration: kind='int8' takes the ranges .* pass some"),
        ("int8", [], ConfigError, "calibration: expected at least one batch of inputs, got none"),
        (
            "int8",
            [normal((4,))(8, 0), normal((5,))(8, 0)],
            SpecError,
            r"calibration\[1\]: inputs\[0\]: expected float32 .*4.*, got float32 \(8, 5\)",
        ),
        (
            "float16",
            [np.zeros((8, 4), np.float32)],
            SpecError,
            r"calibration\[0\]: expected the tuple of the model's inputs, .* got ndarray",
        ),
        ("int8", [(np.zeros((8, 4)),)], SpecError, r"calibration\[0\]: inputs\[0\]: .* float64"),
    ],
)
def test_what_does_not_fit_is_named_and_changes_nothing(export, kind, calibration, error, message):
    folder = export("mlp")
    before = content(folder)
    with pytest.raises(error, match=message):
        quantize(folder, kind, calibration)
    assert content(folder) == before


def test_a_graph_that_onnxruntime_cannot_quantise_leaves_the_export_as_it_was(export, monkeypatch):
    from bray_model.export import reduced_graph

    def fail(graph):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(reduced_graph, "dynamic_int8", fail)
    folder = export("mlp")
    before = content(folder)
    message = "model.onnx: onnxruntime cannot make it int8-dynamic: RuntimeError: no kernel"
    with pytest.raises(ExportError, match=message):
        quantize(folder, "int8-dynamic")
    assert content(folder) == before


def test_float16_is_compared_as_a_gpu_rounds_it_on_256_rows_at_most(tmp_path):
    class There(torch.nn.Module):
        def forward(self, x):
            return torch.relu(x + 1000) - 1000

    with Model(There(), np.ones((1, 4), np.float32)) as model:
        model.export(tmp_path / "export")
    batches = [(np.full((100, 4), 0.3, np.float32),)] * 3
    report = quantize(tmp_path / "export", "float16", batches)
    assert report.num_rows == 256
    assert report.outputs[0].max_abs_error == pytest.approx(0.2, abs=1e-3)  # 1000.3 → 1000.5


def test_numbers_beyond_the_range_of_float16_are_refused(tmp_path):
    class Large(torch.nn.Module):
        def forward(self, x):
            return x * 1000 * 1000

    with Model(Large(), np.ones((1, 4), np.float32)) as model:
        model.export(tmp_path / "export")
    with pytest.raises(ExportError, match="outputs: the quantised graph gives NaN or inf where"):
        quantize(tmp_path / "export", "float16")
    assert not (tmp_path / "export/float16.onnx").exists()


def test_outputs_drawn_at_random_are_not_compared(tmp_path):
    class Noisy(torch.nn.Module):
        def forward(self, x):
            return {"sure": x * 2, "drawn": x + torch.rand_like(x)}

    with Model(Noisy(), np.ones((1, 4), np.float32)) as model:
        model.export(tmp_path / "export", random_outputs=("outputs/drawn",))
    report = quantize(tmp_path / "export", "float16")
    assert [output.name for output in report.outputs] == ["outputs/sure"]


def test_it_needs_onnx_and_says_so(export, monkeypatch):
    folder = export("mlp")
    import bray_model.export

    monkeypatch.delitem(sys.modules, "bray_model.export.reduced_graph", raising=False)
    monkeypatch.delattr(bray_model.export, "reduced_graph", raising=False)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(
        MissingExtraError, match=r"a quantised graph .* install bray-model\[torch\]"
    ):
        quantize(folder, "float16")


def test_making_a_float16_graph_leaves_the_import_path_alone(export):
    before = list(sys.path)
    quantize(export("mlp"), "float16")
    assert sys.path == before


@pytest.mark.parametrize(
    ("got", "want", "agreement"),
    [
        ([[1.0, 2.0], [3.0, 2.0]], [[1.0, 2.0], [2.0, 3.0]], 0.5),
        ([[1.0], [2.0]], [[1.0], [3.0]], None),
        ([1.0, 2.0], [1.0, 3.0], None),
        ([1, 2, 3, 4], [1, 2, 3, 5], 0.75),
        ([[1, 2], [3, 4]], [[1, 2], [3, 5]], 0.5),
        ([[[1.0, 2.0], [2.0, 1.0]]], [[[1.0, 2.0], [1.0, 2.0]]], 0.5),
    ],
)
def test_agreement_is_the_share_of_equal_decisions(got, want, agreement):
    found = OutputAgreement.of("y", np.array(got), np.array(want))
    assert found.agreement == agreement
    assert found.max_abs_error == np.abs(np.array(got) - np.array(want)).max()
    assert np.isfinite(found.max_rel_error)


def test_the_error_is_that_of_rows_that_showed_no_range(export):
    """Of rows that lie beyond the others' range only a quarter is compared, and shows it."""
    folder = export("mlp")
    (rows,) = normal((4,))(64, 0)
    rows[3::4] *= 8
    got = quantize(folder, "int8", [(rows,)])
    assert (got.inputs, got.num_rows) == ("held-out calibration", 16)
    want = logits(folder, "auto", (rows[3::4],)) - logits(folder, "int8", (rows[3::4],))
    assert got.outputs[0].max_abs_error == pytest.approx(np.abs(want).max(), rel=1e-4)
    seen = logits(folder, "auto", (rows[::4],)) - logits(folder, "int8", (rows[::4],))
    assert got.outputs[0].max_abs_error > 2 * np.abs(seen).max()


@pytest.mark.parametrize("rows", [np.zeros((50, 4)), np.full((50, 4), 0.3), np.ones((1, 4))])
def test_rows_that_are_all_the_same_calibrate_nothing(export, rows):
    folder = export("mlp")
    before = content(folder)
    with pytest.raises(ConfigError, match=r"calibration: expected rows that differ .* all are the"):
        quantize(folder, "int8", [(row[None].astype(np.float32),) for row in rows])
    assert content(folder) == before


@pytest.mark.parametrize("rows", [2, 3, 4, 5])
def test_few_rows_are_halved_too(export, rows):
    report = quantize(export("mlp"), "int8", [normal((4,))(rows, 0)])
    assert report.num_rows == 1


def test_an_input_that_never_varies_is_named(export, caplog):
    x, h, c = normal((4,), (1, 16), (1, 16))(32, 0)
    folder = export("lstm")
    report = quantize(folder, "int8-dynamic", [(x, (np.zeros_like(h), c))])
    assert report.unvaried == ("inputs[1][0]",)
    assert "inputs[1][0]: the same in every row" in report.table()
    assert "inputs[1][0]: the same in every row: it was not compared" in caplog.text
    assert read_report(folder).quantized == (report,)


def test_a_kind_that_leaves_all_weights_as_they_are_is_refused(tmp_path):
    class Bare(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = torch.nn.LSTM(4, 8, batch_first=True)

        def forward(self, x):
            return self.cell(x)[0][:, -1]

    with Model(Bare(), np.zeros((1, 3, 4), np.float32)) as model:
        model.export(tmp_path / "export")
    rows = [normal((3, 4))(32, 0)]
    with pytest.raises(
        ExportError, match=r"int8 leaves all its weights as they are: .* int8-dynam"
    ):
        quantize(tmp_path / "export", "int8", rows)
    assert not (tmp_path / "export/int8.onnx").exists()
    report = quantize(tmp_path / "export", "int8-dynamic", rows)
    assert report.share == pytest.approx(384 / 448, abs=0.01), "all but the biases"
    assert re.search(r"\n8\d\.\d% of its weights are in fewer bits", report.table())
