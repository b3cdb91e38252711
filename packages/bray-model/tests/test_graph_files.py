"""A graph reads nothing but files of its own export whose checksums were compared."""

import json
import os
import threading

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bray_core.cli import main
from bray_core.errors import BrayError, ExportError
from bray_core.nested import ArraySpec
from bray_model import Manifest, Model, ModelConfig, Signature
from bray_model.engines.onnx_engine import OnnxEngine
from bray_model.export.export_folder import copy_export
from bray_model.export.export_report import ExportReport
from bray_model.export.quantize import quantize
from bray_model.export_files.graph_files import _CHILDREN, external_files
from bray_model.export_files.manifest import check_files, sha256
from bray_model.serving.repository import ExportRepository

SPEC = ArraySpec(np.dtype(np.float32), (16,))
SIGNATURE = Signature((SPEC,), SPEC)
WEIGHT = np.eye(16, dtype=np.float32) * 2
ROW = np.ones(16, np.float32)


def elsewhere(location, name="w"):
    """A tensor whose data are in another file."""
    tensor = numpy_helper.from_array(WEIGHT, name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return tensor


def model_with(initializers=(), nodes=(), **more):
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [*nodes, helper.make_node("MatMul", ["inputs[0]", "w"], ["outputs"])],
        "g",
        [value("inputs[0]", 1, ["b", 16])],
        [value("outputs", 1, ["b", 16])],
        list(initializers),
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9, **more
    )


def write(folder, graph, **files):
    """Make an export of a graph; `files` are listed in its manifest."""
    folder.mkdir(exist_ok=True)
    report = ExportReport(
        path=folder, version=1, batch_sizes=(1,), rtol=1e-3, atol=1e-4, outputs=()
    )
    contents = {"model.onnx": graph, "report.json": report.to_json(), **files}
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    manifest = Manifest(
        name="m",
        version=1,
        signature=SIGNATURE,
        actor=None,
        files={name: sha256(data) for name, data in contents.items()},
    )
    (folder / "manifest.json").write_bytes(manifest.to_json())
    return folder


def opened(folder):
    """Every way by which an export's graph is opened."""
    return {
        "Model": lambda: Model(folder).close(),
        "Repository": lambda: ExportRepository(folder, lambda manifest: ModelConfig()).close(),
        "quantize": lambda: quantize(folder, "float16"),
        "check_files": lambda: check_files(folder),
        "copy": lambda: copy_export(folder, folder.parent / "copy"),
    }


WAYS = list(opened(None))


@pytest.fixture
def secret(tmp_path, monkeypatch):
    """A file in the working directory, beside the export, that a graph would like to read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.bin").write_bytes(WEIGHT.tobytes())
    return tmp_path


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "where", ["secret.bin", "../secret.bin", "{}/secret.bin", "", "model.onnx\0"]
)
def test_a_graph_that_names_a_file_elsewhere_is_refused(secret, where, way):
    graph = model_with([elsewhere(where.format(secret))]).SerializeToString()
    folder = write(secret / "export", graph)
    with pytest.raises(ExportError, match=r"model.onnx: keeps data in .*which is no file that man"):
        opened(folder)[way]()


@pytest.mark.parametrize("command", ["serve", "validate", "bench", "export"])
def test_the_commands_refuse_it_in_words(secret, capsys, command):
    write(secret / "export", model_with([elsewhere("secret.bin")]).SerializeToString())
    assert main([command, "export"]) == 2
    assert "keeps data in 'secret.bin'" in capsys.readouterr().err


def test_a_file_of_the_export_is_read_from_its_folder(secret, monkeypatch):
    graph = model_with([elsewhere("w.bin")]).SerializeToString()
    folder = write(secret / "export", graph, **{"w.bin": WEIGHT.tobytes()})
    (secret / "w.bin").write_bytes(WEIGHT.tobytes()[::-1])  # not this one
    with Model(folder) as model:
        assert model(ROW).tolist() == [2.0] * 16
    assert quantize(folder, "float16").outputs[0].max_abs_error < 0.01
    assert main(["validate", "export"]) == 0
    copy_export(folder, secret / "copy")
    with Model(secret / "copy", config=ModelConfig(backend="float16")) as model:
        assert model(ROW).tolist() == [2.0] * 16


@pytest.mark.parametrize("fault", ["changed", "absent", "link", "pipe"])
@pytest.mark.parametrize("way", WAYS)
def test_a_file_of_the_export_is_checked_before_it_is_read(secret, fault, way):
    graph = model_with([elsewhere("w.bin")]).SerializeToString()
    folder = write(secret / "export", graph, **{"w.bin": WEIGHT.tobytes()})
    (folder / "w.bin").unlink()
    match fault:
        case "changed":
            (folder / "w.bin").write_bytes(WEIGHT.tobytes()[:-1] + b"\1")
        case "link":
            (folder / "w.bin").symlink_to(secret / "secret.bin")
        case "pipe":
            os.mkfifo(folder / "w.bin")
    words = {"changed": "checksum", "absent": "cannot be read", "link": "leads out", "pipe": "pipe"}
    with pytest.raises(ExportError, match=f"w.bin: .*{words[fault]}"):
        opened(folder)[way]()


@pytest.mark.parametrize("name", ["model.onnx", "manifest.json", "report.json"])
@pytest.mark.parametrize("what", ["pipe", "folder", "link", "loop", "device"])
def test_what_is_no_plain_file_of_the_folder_is_refused_at_once(secret, name, what):
    folder = write(
        secret / "export", model_with([numpy_helper.from_array(WEIGHT, "w")]).SerializeToString()
    )
    data = (folder / name).read_bytes()
    (folder / name).unlink()
    match what:
        case "pipe":
            os.mkfifo(folder / name)
        case "folder":
            (folder / name).mkdir()
        case "link":
            (secret / "elsewhere").write_bytes(data)
            (folder / name).symlink_to(secret / "elsewhere")
        case "loop":
            (folder / name).symlink_to(folder / name)
        case "device":
            (folder / name).symlink_to("/dev/zero")
    with pytest.raises(BrayError):
        check_files(folder)
    if name == "model.onnx":
        with pytest.raises(ExportError, match=name):
            Model(folder)


def test_a_link_inside_the_folder_is_followed(secret):
    """As Kubernetes mounts the files of a config map."""
    folder = write(
        secret / "export", model_with([numpy_helper.from_array(WEIGHT, "w")]).SerializeToString()
    )
    (folder / "..data").mkdir()
    (folder / "model.onnx").rename(folder / "..data/model.onnx")
    (folder / "model.onnx").symlink_to("..data/model.onnx")
    (secret / "newest").symlink_to(folder)
    with Model(secret / "newest") as model:
        assert model(ROW).tolist() == [2.0] * 16


def test_a_pipe_in_place_of_a_graph_holds_up_neither_reload_nor_close(secret):
    plain = model_with([numpy_helper.from_array(WEIGHT, "w")]).SerializeToString()
    folder = write(secret / "export", plain)
    repository = ExportRepository(folder, lambda manifest: ModelConfig())
    (folder / "model.onnx").unlink()
    os.mkfifo(folder / "model.onnx")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "version": 2}))
    closing = threading.Thread(target=lambda: (repository.scan(), repository.close()), daemon=True)
    closing.start()
    closing.join(30)
    assert not closing.is_alive()
    assert repository.get("m").version == 1


def test_a_graph_larger_than_protocol_buffers_is_not_read(secret):
    folder = write(secret / "export", b"")
    os.truncate(folder / "model.onnx", 2**31 + 1)
    with pytest.raises(ExportError, match=r"model.onnx: expected at most 2,147,483,648 bytes"):
        Model(folder)


def test_bytes_from_anywhere_name_no_file(secret):
    graph = model_with([elsewhere("secret.bin")]).SerializeToString()
    with pytest.raises(ExportError, match=r"holds all its data, got one in \['secret.bin'\]"):
        OnnxEngine(graph, SIGNATURE)


def attribute(**fields):
    made = onnx.AttributeProto(name="a")
    for name, value in fields.items():
        if isinstance(value, list):
            getattr(made, name).extend(value)
        else:
            getattr(made, name).CopyFrom(value)
    return made


def sparse(part):
    return onnx.SparseTensorProto(**{part: elsewhere("secret.bin")})


def graph_of(tensor):
    return onnx.GraphProto(name="inner", initializer=[tensor])


TENSOR = elsewhere("secret.bin")
HIDDEN = {
    "t": attribute(t=TENSOR),
    "tensors": attribute(tensors=[TENSOR]),
    "g": attribute(g=graph_of(TENSOR)),
    "graphs": attribute(graphs=[graph_of(TENSOR)]),
    "sparse": attribute(sparse_tensor=sparse("values")),
    "sparses": attribute(sparse_tensors=[sparse("indices")]),
}


@pytest.mark.parametrize("where", HIDDEN)
def test_files_are_found_in_every_attribute(where):
    node = onnx.NodeProto(op_type="X", output=["y"], attribute=[HIDDEN[where]])
    inner = onnx.NodeProto(op_type="If", attribute=[attribute(g=onnx.GraphProto(node=[node]))])
    function = onnx.FunctionProto(name="f", node=[inner], attribute_proto=[HIDDEN[where]])
    for model in (
        model_with(nodes=[node]),
        model_with(nodes=[inner]),
        onnx.ModelProto(functions=[function]),
        onnx.ModelProto(training_info=[onnx.TrainingInfoProto(algorithm=graph_of(TENSOR))]),
        onnx.ModelProto(graph=onnx.GraphProto(sparse_initializer=[sparse("values")])),
    ):
        assert external_files(model.SerializeToString(), "x") == ["secret.bin"]


def test_no_way_from_a_model_to_a_tensor_is_forgotten():
    """onnx's own description of its messages is the reference."""
    kinds = {
        "ModelProto": "model", "TrainingInfoProto": "training", "FunctionProto": "function",
        "GraphProto": "graph", "NodeProto": "node", "AttributeProto": "attribute",
        "SparseTensorProto": "sparse", "TensorProto": "tensor",
    }  # fmt: skip
    for name, kind in kinds.items():
        fields = getattr(onnx, name).DESCRIPTOR.fields
        wanted = {
            field.number: kinds[field.message_type.name]
            for field in fields
            if field.message_type is not None and field.message_type.name in kinds
        }
        assert wanted.items() <= _CHILDREN[kind].items(), name


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        (b"\x08\x0a\x00\x00ORTM", "onnxruntime's own format"),
        (b"location\xff", "not an ONNX graph"),
        (b"\x3a\x7flocation", "ends in the middle"),
        (b"\x3b" + b"location", "a field of type 3"),
        (b"\x38" + b"\xff" * 20 + b"location", "more than ten bytes"),
        (b"\xba\x80\x80\x80\x80\x01\x08location", "too large"),
        (b"\x38\x01" + b"\x3a\x00" + b"\x3d" + b"location", "not an ONNX graph"),
        (
            model_with(
                [numpy_helper.from_array(WEIGHT, "w")],
                [helper.make_node("EPContext", [], ["y"], domain="com.microsoft")],
            ).SerializeToString(),
            "EPContext",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(graph, words):
    with pytest.raises(ExportError, match=words):
        external_files(graph, "model.onnx")


def test_a_field_for_each_byte_costs_seconds_not_minutes(monkeypatch):
    monkeypatch.setattr("bray_model.export_files.graph_files._MAX_FIELDS", 1000)
    with pytest.raises(ExportError, match="more than 1,000 fields"):
        external_files(b"\x3a\x00" * 2000 + b"\x32\x08location", "x")


def test_weights_that_spell_the_word_are_no_file():
    tensor = onnx.TensorProto(name="location", data_type=1, dims=[2], raw_data=b"location")
    assert external_files(model_with([tensor]).SerializeToString(), "x") == []
