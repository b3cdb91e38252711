import re
import subprocess
import sys
from typing import get_args

import numpy as np
import pytest

from bray_core.cli import main
from bray_model import Manifest, Model, ModelConfig
from bray_model.config import Backend
from bray_model.export import bench
from bray_model.export.export_folder import read_report
from bray_model.export_files.manifest import QUANTIZED


@pytest.fixture
def calibration(tmp_path, observations):
    """Arrays by leaf path, 150 rows, as an npz."""
    (units, (extra,)) = observations(150)
    arrays = {
        "inputs[0]/units": units["units"],
        "inputs[0]/alive": units["alive"],
        "inputs[1][0]": extra,
    }
    np.savez(tmp_path / "seen.npz", **arrays)
    return tmp_path / "seen.npz", arrays


def test_quantize_bench_and_validate_from_the_command_line(
    export_copy, calibration, observations, capsys, monkeypatch
):
    monkeypatch.setattr(bench, "BATCH_SIZES", (1, 4))
    folder, (file, _) = str(export_copy), calibration
    assert main(["quantize", folder, "--kind", "int8", "--calibration", str(file)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"added {folder}/int8.onnx\n")
    assert "int8 beside model.onnx, on 37 rows of held-out calibration inputs:" in printed
    assert re.search(r"outputs/logits +\S+ +\S+ +(100|9\d)\.\d\d%\n", printed)
    assert main(["quantize", folder, "--kind", "float16"]) == 0
    assert main(["validate", folder]) == 0
    printed = capsys.readouterr().out
    assert "int8: batches of 1, 2, 7, 64 rows: outputs of the right shapes" in printed
    assert main(["bench", folder, "--seconds", "0.001"]) == 0
    printed = capsys.readouterr().out
    agreement = read_report(export_copy).agreement()
    for backend in ("int8", "float16"):
        assert re.search(rf"\n{backend} .* {agreement[backend]:.2%}\n", printed)
    assert re.search(r"\nafter a publish +1 +4 +[\d.,]+ +[\d,]+\n", printed)
    recommended = Manifest.read(export_copy).recommended
    assert f"recommended here: --backend {recommended.backend} --threads" in printed
    with Model(export_copy, config=ModelConfig(backend=recommended.backend)) as model:
        assert model(*observations(3), batch=True)["logits"].shape == (3, 3)


def without(name):
    return lambda arrays: arrays.pop(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("inputs[1][0]"), r"seen.npz: expected the arrays \['inputs\[0\]/alive', .* got"),
        (lambda a: a.update(x=np.ones(3)), r"expected the arrays .*, got \[.*'x'\]"),
        (lambda a: a.update({"inputs[1][0]": np.ones(3)}), r"expected N rows in every array, got"),
        (lambda a: a.update({"inputs[1][0]": np.float32(3)}), r"expected N rows in every array"),
        (
            lambda a: a.update({"inputs[0]/units": np.ones((150, 5), np.float32)}),
            r"calibration\[0\]: inputs\[0\]/units: expected float32 .*, got float32 \(64, 5\)",
        ),
        (
            lambda a: a.update({"inputs[1][0]": np.array([{}] * 150, object)}),
            r"not an npz of arrays \(Object arrays cannot be loaded",
        ),
    ],
)
def test_a_calibration_file_that_does_not_fit_is_told(
    export_copy, calibration, capsys, change, message
):
    file, arrays = calibration
    change(arrays)
    np.savez(file, **arrays)
    command = ["quantize", str(export_copy), "--kind", "int8", "--calibration", str(file)]
    assert main(command) == 2
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize("data", [b"", b"nonsense", b"\x80\x04.", None])
def test_what_is_no_npz_is_told(export_copy, tmp_path, capsys, data):
    if data is not None:
        (tmp_path / "x.npz").write_bytes(data)
    command = ["quantize", str(export_copy), "--kind=int8", f"--calibration={tmp_path}/x.npz"]
    assert main(command) == 2
    assert re.search(
        r"error: --calibration: .*x.npz: not an npz of arrays \(", capsys.readouterr().err
    )


def test_one_plain_array_is_no_npz(export_copy, tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.ones(3))
    command = ["quantize", str(export_copy), "--kind=int8", f"--calibration={tmp_path}/x.npy"]
    assert main(command) == 2
    assert "not an npz of arrays" in capsys.readouterr().err


def test_int8_without_calibration_is_told(export_copy, capsys):
    assert main(["quantize", str(export_copy), "--kind", "int8"]) == 2
    assert "error: calibration: kind='int8' takes the ranges" in capsys.readouterr().err


def test_the_command_itself_loads_none_of_the_packages_logic():
    code = "import bray_model.commands, sys; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {
        name for name in run.stdout.split() if name.startswith(("bray_model", "numpy", "onnx"))
    }
    assert loaded == {"bray_model", "bray_model.commands"}


def test_it_offers_what_there_is():
    from bray_model.commands import _KINDS

    assert tuple(QUANTIZED) == _KINDS
    assert set(_KINDS) < set(get_args(Backend))
