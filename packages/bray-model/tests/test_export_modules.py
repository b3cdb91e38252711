"""Modules that are unlike the usual one: exported right, or refused in words."""

import json
import tracemalloc
from dataclasses import replace
from itertools import pairwise

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from bray_core.cli import main
from bray_core.errors import ConfigError, ExportError, SpecError
from bray_model import Manifest, Model
from bray_model.engines.definition import open_definition
from bray_model.engines.torch_engine import TorchEngine
from bray_model.export.export_folder import read_report
from bray_model.export.graph_writer import write_graph
from bray_model.export.row_check import check_rows
from bray_model.export.traced_graph import write_traced_graph
from bray_model.export.trial_inputs import trial_inputs
from bray_model.export.validate import validate


class Calls(nn.Module):
    """Runs a function of its parts and inputs."""

    def __init__(self, function, *parts):
        super().__init__()
        self.function = function
        self.parts = nn.ModuleList(parts)

    def forward(self, *inputs):
        return self.function(self.parts, *inputs)


class AlwaysTraining(nn.Module):
    """What `eval()` does not reach."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def train(self, mode=True):
        return super().train(True)

    def forward(self, x):
        return self.part(x)


def zeros(*shape, rows=1, dtype=np.float32):
    return np.zeros((rows, *shape), dtype)


def network(*sizes):
    torch.manual_seed(0)
    layers = [nn.Linear(a, b) for a, b in pairwise(sizes)]
    return nn.Sequential(*[part for layer in layers for part in (layer, nn.Tanh())][:-1])


def rows_of(signature, rows=16, seed=3):
    rng = np.random.default_rng(seed)
    tree = signature.input_tree
    return tree.build(
        [rng.standard_normal((rows, *spec.shape)).astype(spec.dtype) for spec in tree.specs]
    )


def assert_alike(model, folder, rtol=1e-3):
    inputs = rows_of(model.signature)
    with Model(folder) as exported:
        assert exported.signature == model.signature
        got = dict(
            zip(
                "abcdef",
                model.signature.output_tree.leaves(exported(*inputs, batch=True)),
                strict=False,
            )
        )
        want = dict(
            zip(
                "abcdef",
                model.signature.output_tree.leaves(model(*inputs, batch=True)),
                strict=False,
            )
        )
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=rtol, atol=rtol)


# Names and aliases.


def test_one_tensor_may_stand_under_several_names(tmp_path):
    def forward(parts, x, y):
        same = parts[0](x)
        return {
            "a": same,
            "b": [same, same.view(-1, 3)],
            "c": x,
            "d": (x, y),
            "e": x.view(-1, 2, 2),
        }

    with Model(Calls(forward, network(4, 3)), (zeros(4), zeros(2))) as model:
        model.export(tmp_path / "e")
        assert_alike(model, tmp_path / "e")


def test_outputs_of_any_layout_dtype_and_dependence(tmp_path):
    def forward(parts, x):
        y = parts[0](x)
        return {
            "turned": y.view(-1, 2, 3).transpose(1, 2),
            "whole": y.argmax(-1),
            "truth": y > 0,
            "constant": torch.ones(x.shape[0], 2),
            "weight": parts[0][0].bias.expand(x.shape[0], -1),
        }

    with Model(Calls(forward, network(4, 6)), zeros(4)) as model:
        model.export(tmp_path / "e")
        assert_alike(model, tmp_path / "e")


# Rows that depend on each other.

DEPENDENT = {
    "mean": (lambda parts, x: x - x.mean(0), zeros(4)),
    "a little": (lambda parts, x: x + 0.01 * x.sum(0), zeros(4)),
    "roll": (lambda parts, x: x.roll(1, 0), zeros(4)),
    "cumsum": (lambda parts, x: x.cumsum(0), zeros(4)),
    "flip": (lambda parts, x: x.flip(0), zeros(4)),
    "sort": (lambda parts, x: x.sort(0).values, zeros(4)),
    "softmax over rows": (lambda parts, x: torch.softmax(x, 0), zeros(4)),
    "rank": (lambda parts, x: x[:, 0].argsort().argsort(), zeros(4)),
    "pixels": (lambda parts, x: x.float() / x.float().max(), zeros(4, dtype=np.uint8)),
    "number of rows": (lambda parts, x: x + x.shape[0], zeros(4)),
    "first row": (lambda parts, x: x - x[:1], zeros(4)),
    "BatchNorm without figures": (
        lambda parts, x: torch.nn.functional.batch_norm(x, None, None, training=True),
        zeros(4, 5),
    ),
}


def checked_rows(module, example):
    """Check as an export does; return nothing, or raise."""
    definition = open_definition(module, example)
    inputs = trial_inputs(definition.engine.run, definition.example, 64)
    paths = definition.signature.output_tree.paths
    check_rows(definition.engine.run, inputs, paths, 1e-3, 1e-4)


@pytest.mark.parametrize("name", DEPENDENT)
def test_rows_that_depend_on_each_other_are_noticed(name):
    function, example = DEPENDENT[name]
    with pytest.raises(ExportError, match=r"outputs: rows depend on each other: asked "):
        checked_rows(Calls(function), example)


def lstm():
    torch.manual_seed(0)
    return Calls(lambda parts, x: parts[0](x)[0][:, -1], nn.LSTM(4, 32, batch_first=True))


def pixels():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
    return Calls(lambda parts, x: parts[1](parts[0](x.float() / 255)), net, nn.LazyLinear(6))


INDEPENDENT = {
    "deep": lambda: (network(64, 512, 512, 512, 6), zeros(64)),
    "zero head": lambda: (zeroed(network(4, 64, 3)), zeros(4)),
    "lstm": lambda: (lstm(), zeros(5, 4)),
    "layer norm": lambda: (nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8)), zeros(4)),
    "batch norm": lambda: (nn.BatchNorm1d(4), zeros(4, rows=2)),
    "embedding": lambda: (nn.Embedding(5, 3), zeros(2, dtype=np.int64)),
    "argmax": lambda: (Calls(lambda parts, x: x.argmax(-1)), zeros(9)),
    "equal scores": lambda: (Calls(lambda parts, x: (0 * x).argmax(-1)), zeros(9)),
    "half": lambda: (network(64, 256, 3).half(), zeros(64, dtype=np.float16)),
}


def zeroed(net):
    for parameter in net[-1].parameters():
        nn.init.zeros_(parameter)
    return net


@pytest.mark.parametrize("name", INDEPENDENT)
def test_honest_networks_pass(name):
    module, example = INDEPENDENT[name]()
    definition = open_definition(module, example)
    inputs = trial_inputs(definition.engine.run, definition.example, 64)
    rtol = 2e-2 if name == "half" else 1e-3
    paths = definition.signature.output_tree.paths
    check_rows(definition.engine.run, inputs, paths, rtol, rtol / 10)


def test_an_export_refuses_them_and_leaves_nothing(tmp_path):
    with (
        Model(Calls(DEPENDENT["mean"][0]), zeros(4)) as model,
        pytest.raises(ExportError, match="rows depend on each other"),
    ):
        model.export(tmp_path / "e")
    assert list(tmp_path.iterdir()) == []


def test_a_module_that_fails_on_one_row_is_refused_in_words(tmp_path):
    with (
        Model(AlwaysTraining(nn.BatchNorm1d(4)), zeros(4, rows=2)) as model,
        pytest.raises(ExportError, match=r"fails with 1 row \(ValueError: Expected more than 1"),
    ):
        model.export(tmp_path / "e")


def test_a_graph_of_a_fixed_batch_size_is_refused_in_words(tmp_path):
    with (
        Model(Calls(lambda p, x: p[0](x) + torch.ones(len(x), 2), network(4, 2)), zeros(4)) as one,
        pytest.raises(ExportError, match=r"the graph fails with 1 row: .*: write x\.shape\[0\]"),
    ):
        one.export(tmp_path / "e")
    assert list(tmp_path.iterdir()) == []


def test_an_index_beyond_a_table_fails_its_request_in_words(tmp_path):
    table = Calls(lambda p, x: p[0](x), nn.Embedding(5, 2))
    with Model(table, zeros(3, dtype=np.int64)) as model:
        model.export(tmp_path / "e")
    with Model(tmp_path / "e") as served:
        with pytest.raises(SpecError, match=r"the graph refuses the inputs: .* idx=99 must be"):
            served(np.array([1, 99, 2]))
        assert served(np.array([1, 4, 2])).shape == (3, 2)


def test_dropout_that_eval_does_not_reach_is_drawn_at_random(tmp_path):
    with (
        Model(AlwaysTraining(nn.Dropout(0.5)), zeros(4)) as model,
        pytest.raises(ExportError, match="a module that draws random numbers"),
    ):
        model.export(tmp_path / "e")


# Integers as inputs: the example says little of them.


def test_trial_inputs_spread_over_what_the_network_takes():
    pixel = trial_inputs(lambda given: given, (zeros(4, dtype=np.uint8),), 64)[0]
    assert pixel.max() > 200
    table = nn.Embedding(5, 3)
    (index,) = trial_inputs(TorchEngine(table).run, (zeros(2, dtype=np.int64),), 64)
    assert set(np.unique(index)) == {0, 1}

    def picky(given):
        if not np.isin(given[0], (7, 9)).all():
            raise IndexError

    (drawn,) = trial_inputs(picky, (np.array([[7], [9]]),), 64)
    assert set(np.unique(drawn)) == {7, 9}


# Fewer bits.


class Inside(nn.Module):
    """Takes and gives float32, computes in bfloat16."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(64, 64).bfloat16()
        self.head = nn.Linear(64, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x.bfloat16())).float())


BF16 = {
    "whole": lambda: (network(64, 64, 3).bfloat16(), zeros(64)),
    "inside": lambda: (Inside(), zeros(64)),
}


@pytest.mark.parametrize("name", BF16)
def test_bfloat16_becomes_float32_with_the_same_weights(tmp_path, name):
    module, example = BF16[name]()
    with Model(module, example) as model:
        assert model.signature.input_tree.specs[0].dtype == np.float32
        report = model.export(tmp_path / "e")
        assert report.rtol == 0.1
        assert_alike(model, tmp_path / "e", 0.05)
        weights = model.weights()[1]
        with Model(tmp_path / "e") as exported:
            for key, array in exported.weights()[1].items():
                assert array.dtype == np.float32
                np.testing.assert_array_equal(array, weights[key])
            assert exported.publish(weights) == 1
            row = rows_of(model.signature, 1)[0][0]
            np.testing.assert_allclose(exported(row), model(row), rtol=0.05, atol=0.05)
    held = onnx.load(tmp_path / "e/model.onnx")
    kinds = {each.data_type for each in held.graph.initializer}
    assert onnx.TensorProto.BFLOAT16 not in kinds
    assert list(validate(tmp_path / "e", Manifest.read(tmp_path / "e")))


def test_a_publish_to_a_bfloat16_module_is_rounded():
    with Model(nn.Linear(2, 1).bfloat16(), torch.zeros(1, 2, dtype=torch.bfloat16)) as model:
        model.publish({"weight": np.float32([[1.0, 1e-3]]), "bias": np.float32([1 + 2**-12])})
        assert model(np.zeros(2, np.float32)).tolist() == [1.0]


def test_a_float16_module_is_exported_with_a_tolerance_of_its_own(tmp_path):
    with Model(network(64, 256, 256, 3).half(), zeros(64, dtype=np.float16)) as model:
        assert model.export(tmp_path / "e").rtol == 2e-2
        assert_alike(model, tmp_path / "e", 2e-2)
        with pytest.raises(ExportError, match=r"outputs: the export differs .* allowed 1e-06"):
            model.export(tmp_path / "e", tolerance=1e-6)
        report = read_report(tmp_path / "e")
    assert (report.rtol, report.atol) == (2e-2, 2e-3)
    assert list(validate(tmp_path / "e", Manifest.read(tmp_path / "e")))
    assert main(["export", str(tmp_path / "e"), "--tolerance", "1e-9"]) == 2
    assert main(["export", str(tmp_path / "e"), "--tolerance", "0.05"]) == 0


@pytest.mark.parametrize("tolerance", [0, 1, -1, np.nan, True, "a little"])
def test_a_tolerance_out_of_range_is_refused(tmp_path, tolerance):
    with (
        Model(nn.Linear(4, 2), zeros(4)) as model,
        pytest.raises(ConfigError, match="tolerance: expected a number of more than 0 and less"),
    ):
        model.export(tmp_path / "e", tolerance=tolerance)
    assert list(tmp_path.iterdir()) == []


# What torch's exporter does not take.


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.jit.script(network(4, 3)),
        lambda: torch.jit.trace(network(4, 3), torch.zeros(1, 4)),
        lambda: Calls(lambda parts, x: parts[0](x), torch.jit.script(nn.Linear(4, 3))),
    ],
    ids=["script", "trace", "inside"],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_a_scripted_module_answers_and_is_not_exported(tmp_path, make):
    with Model(make(), zeros(4)) as model:
        before = model(np.ones(4, np.float32))
        model.publish({name: array * 2 for name, array in model.weights()[1].items()})
        assert (model(np.ones(4, np.float32)) != before).any()
        with pytest.raises(ExportError, match=r"torch exports no module of torch.jit.script or"):
            model.export(tmp_path / "e")
    assert list(tmp_path.iterdir()) == []


# Tracing, and what it would lose.

UNTRACED = {
    "a branch on numbers": lambda parts, x: parts[0](x) if x.sum() > 0 else parts[0](-x),
    "a branch on rows": lambda parts, x: parts[0](x) if x.shape[0] > 1 else -parts[0](x),
    "rows as a number": lambda parts, x: parts[0](x) + torch.zeros(int(x.shape[0]), 1),
    "half inside": lambda parts, x: parts[0](x).bfloat16().float(),
}


@pytest.mark.parametrize("name", UNTRACED)
def test_what_a_trace_may_lose_is_not_traced(name, tmp_path):
    module = Calls(UNTRACED[name], network(4, 3)).eval()
    definition = open_definition(module, zeros(4))
    with pytest.raises(ExportError, match=r"cannot trace the module|computes in FLOAT alone"):
        write_traced_graph(tmp_path / "g", module, definition.signature, definition.example)


def test_what_torch_does_not_trace_prints_no_graph(tmp_path, capfd):
    module = Calls(lambda parts, x: torch.linalg.matrix_exp(parts[0](x)), network(4, 4)).eval()
    definition = open_definition(module, zeros(4, 4))
    with pytest.raises(Exception, match="not supported"):
        write_traced_graph(tmp_path / "g", module, definition.signature, definition.example)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("fault", [None, "raises", "differs", "fixed"])
def test_what_is_not_traced_right_is_read_by_the_other_exporter(fault, tmp_path, monkeypatch):
    def broken(path, module, signature, example):
        written = write_traced_graph(path, module, signature, example)
        graph = onnx.load(path)
        if fault == "raises":
            raise RuntimeError("no trace")
        if fault == "differs":
            graph.graph.initializer[0].CopyFrom(
                onnx.numpy_helper.from_array(np.zeros((3, 4), np.float32), "module.weight")
            )
            onnx.save(graph, path)
        return replace(written, exchange=b"none") if fault == "fixed" else written

    monkeypatch.setattr("bray_model.export.exporter.write_traced_graph", broken)
    with Model(nn.Linear(4, 3), zeros(4)) as model:
        model.export(tmp_path / "e")
        assert_alike(model, tmp_path / "e")
        with Model(tmp_path / "e") as exported:
            assert exported.publish(model.weights()[1]) == 1
    opset = onnx.load(tmp_path / "e/model.onnx").opset_import[0].version
    assert (opset == 18) is (fault is None)  # the other exporter's is newer
    files = {file.name for file in (tmp_path / "e").iterdir()}
    assert files == {*Manifest.read(tmp_path / "e").files, "manifest.json"}


def test_no_rows_and_no_numbers_are_named():
    with pytest.raises(SpecError, match="example_inputs: expected arrays with at least one row"):
        Model(nn.Linear(4, 2), np.zeros((0, 4), np.float32))


def test_weights_with_nan_are_not_exported(tmp_path):
    module = nn.Linear(4, 2)
    nn.init.constant_(module.bias, torch.nan)
    with (
        Model(module, zeros(4)) as model,
        pytest.raises(SpecError, match="weights/bias: expected numbers, got NaN in 2 of 2"),
    ):
        model.export(tmp_path / "e")


# Files.


def test_a_manifest_says_what_made_the_export(exported):
    made = json.loads((exported[0] / "manifest.json").read_text())["made_with"]
    assert made == Manifest.read(exported[0]).made_with
    assert made["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert made["onnxruntime"] == onnxruntime.__version__
    assert made["weights"] == "float32"
    opset = onnx.load(exported[0] / "model.onnx").opset_import[0].version
    assert made["opset"] == str(opset)


def test_weights_too_large_for_one_file_lie_beside_the_graph(tmp_path, monkeypatch):
    """2 GB are the limit; here it is lower."""
    monkeypatch.setattr("bray_model.export.traced_graph.MOST_WEIGHT_BYTES", 1000)
    monkeypatch.setattr("bray_model.export.torch_graph.MAX_BYTES", 1000)
    with Model(network(64, 64, 3), zeros(64)) as model:
        model.export(tmp_path / "e")
        assert (tmp_path / "e/model.onnx.data").stat().st_size >= 64 * 64 * 4
        assert "model.onnx.data" in Manifest.read(tmp_path / "e").files
        assert_alike(model, tmp_path / "e")
    assert main(["validate", str(tmp_path / "e")]) == 0


def test_weights_are_written_one_by_one(tmp_path):
    """What is held at a time is one of them, not all of them twice over."""
    onnx_ir = pytest.importorskip("onnx_ir")
    arrays = {f"w{i}": np.full((1024, 1024), i, np.float32) for i in range(8)}
    held = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    output = onnx.helper.make_tensor_value_info("y", 1, [1024, 1024])
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Sum", [*arrays], ["y"])], "g", [], [output], held
    )
    model = onnx_ir.serde.deserialize_model(onnx.helper.make_model(graph, ir_version=9))
    tracemalloc.start()
    try:
        write_graph(tmp_path / "model.onnx", model)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * 4 * 1024**2
    written = onnx.load(tmp_path / "model.onnx")
    assert {
        each.name: onnx.numpy_helper.to_array(each).max() for each in written.graph.initializer
    } == {name: i for i, name in enumerate(arrays)}
    assert list(model.graph.initializers) == list(arrays), "the model is as it was"
