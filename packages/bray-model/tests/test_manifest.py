import json

import numpy as np
import pytest

from bray_core.errors import ExportError
from bray_core.nested import ArraySpec
from bray_model import Manifest, Model, Signature
from bray_model.export_files.manifest import GRAPH, check_files

SPEC = ArraySpec(np.dtype(np.float32), (4,))


def rewrite(export, change):
    path = export / "manifest.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_round_trip_keeps_the_structure(tmp_path):
    signature = Signature(
        ({"b": [SPEC], "a": (SPEC,)}, SPEC), {"dtype": SPEC, "dict": {"shape": SPEC}}
    )
    manifest = Manifest(
        name="x", version=3, signature=signature, actor={"name": "policy", "config": {}}, files={}
    )
    (tmp_path / "manifest.json").write_bytes(manifest.to_json())
    assert Manifest.read(tmp_path) == manifest


def test_an_export_has_what_the_readme_says(exported):
    folder, _, model = exported
    content = json.loads((folder / "manifest.json").read_text())
    assert sorted(file.name for file in folder.iterdir()) == [
        "exchange.onnx",
        "manifest.json",
        "model.onnx",
        "report.json",
        "weights.safetensors",
    ]
    assert content["format"] == 1
    assert content["name"] == "policy"
    assert content["actor"] is None
    assert content["inputs"]["tuple"][0]["dict"]["units"] == {"dtype": "float32", "shape": [4]}
    assert sorted(content["files"]) == [
        "exchange.onnx",
        "model.onnx",
        "report.json",
        "weights.safetensors",
    ]
    assert check_files(folder).signature == model.signature


def test_a_folder_without_manifest_is_no_export(tmp_path):
    with pytest.raises(ExportError, match=r"not an export, it has no manifest.json"):
        Model(tmp_path)


def test_another_format_version_is_told(export_copy):
    rewrite(export_copy, lambda content: content.update(format=2))
    with pytest.raises(ExportError, match=r"manifest.json: expected format 1, got 2: export again"):
        Model(export_copy)


def test_a_truncated_graph_is_told(export_copy):
    graph = export_copy / GRAPH
    graph.write_bytes(graph.read_bytes()[:-100])
    with pytest.raises(ExportError, match=r"model.onnx: its \d+ bytes .* it is truncated or was"):
        Model(export_copy)


def test_a_missing_graph_is_told(export_copy):
    (export_copy / GRAPH).unlink()
    with pytest.raises(ExportError, match=r"model.onnx: cannot be read \(No such file"):
        Model(export_copy)


def test_a_missing_report_is_noticed_by_the_full_check(export_copy):
    (export_copy / "report.json").unlink()
    with pytest.raises(ExportError, match=r"report.json: cannot be read"):
        check_files(export_copy)


def spoil(key, value):
    return lambda content: content.update({key: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.pop("files"), "files: missing"),
        (spoil("name", 3), "name: expected printable text, got 3"),
        (spoil("name", "\x1b[2J"), "name: expected printable text"),
        (spoil("version", -1), "version: expected 0 or more, got -1"),
        (spoil("version", True), "version: expected 0 or more, got True"),
        (spoil("files", []), r"files: expected name → sha256, got \[\]"),
        (spoil("files", {"model.onnx": 3}), r"files/model.onnx: expected .*, got 3"),
        (spoil("files", {"../../etc/passwd": {"sha256": "x"}}), "expected a plain file name, got"),
        (spoil("files", {"/etc/passwd": {"sha256": "x"}}), "expected a plain file name, got"),
        (spoil("files", {"..": {"sha256": "x"}}), "expected a plain file name, got '..'"),
        (spoil("files", {"report.json": {"sha256": "x"}}), r"files: expected model.onnx, got"),
        (spoil("actor", "os.system"), r"actor: expected null or \{.*\}, got 'os.system'"),
        (spoil("actor", {"name": "x"}), r"actor: expected null or"),
        (spoil("inputs", {"list": []}), "inputs: expected a tuple, one entry per argument"),
        (spoil("inputs", {"tuple": []}), "inputs: expected at least one array, got an empty tree"),
        (spoil("outputs", {"dtype": "object", "shape": []}), 'outputs: expected "dtype" and "sh'),
        (spoil("outputs", {"dtype": "float32", "shape": [-1]}), "outputs: expected a shape of"),
        (spoil("outputs", {"dict": {}, "list": []}), 'outputs: expected "dtype" and "shape"'),
        (spoil("outputs", "__import__('os')"), 'outputs: expected "dtype" and "shape"'),
        (spoil("outputs", {"list": [3]}), r'outputs\[0\]: expected "dtype" and "shape"'),
        (spoil("outputs", {"dtype": "float32", "shape": [3]}), r"expected the outputs \['outputs'"),
    ],
)
def test_a_malformed_manifest_is_told(export_copy, change, message):
    rewrite(export_copy, change)
    with pytest.raises(ExportError, match=message):
        Model(export_copy)


def test_a_manifest_that_contradicts_the_graph_is_told(export_copy):
    def enlarge(content):
        content["inputs"]["tuple"][0]["dict"]["units"]["shape"] = [10**12]

    rewrite(export_copy, enlarge)
    with pytest.raises(ExportError, match=r"inputs\[0\]/units: expected float32 \(1000.*, got"):
        Model(export_copy)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "\x00", "[]", "3"])
def test_what_is_no_manifest_is_told(export_copy, text):
    (export_copy / "manifest.json").write_text(text)
    with pytest.raises(ExportError, match=r"manifest.json: (not JSON|expected format 1)"):
        Model(export_copy)


def test_a_huge_manifest_is_not_read(export_copy):
    (export_copy / "manifest.json").write_bytes(b" " * (1024 * 1024 + 1))
    with pytest.raises(ExportError, match=r"larger than 1048576 bytes: not a manifest"):
        Model(export_copy)


def test_a_graph_that_onnxruntime_refuses_is_told(export_copy):
    from bray_model.export_files.manifest import sha256

    (export_copy / GRAPH).write_bytes(b"garbage")
    rewrite(export_copy, lambda c: c["files"][GRAPH].update(sha256=sha256(b"garbage")))
    with pytest.raises(ExportError, match=r"model.onnx: onnxruntime refuses it: "):
        Model(export_copy)
