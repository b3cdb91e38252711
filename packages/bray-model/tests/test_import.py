import os
import subprocess
import sys

import pytest

import bray_model

HEAVY = ("torch", "transformers", "ray", "tensorboard", "onnx", "onnxruntime", "aiohttp")


def modules_after(code: str) -> set[str]:
    code += "\nimport sys; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


def test_importing_loads_nothing_heavy():
    more = "import bray_model.commands, bray_model.chat.endpoint, bray_model.text.text_model"
    loaded = modules_after(f"from bray_model import *\n{more}")
    assert "bray_model.model" in loaded
    assert not loaded.intersection(HEAVY)


def test_the_commands_load_none_of_the_packages_logic():
    loaded = modules_after("import bray_model.commands")
    assert {name for name in loaded if name.startswith("bray_model")} == {
        "bray_model",
        "bray_model.commands",
    }


def test_public_names_are_all_there():
    assert sorted(bray_model.__all__) == dir(bray_model)
    for name in bray_model.__all__:
        assert getattr(bray_model, name).__name__ == name
    with pytest.raises(AttributeError, match=r"'bray_model' has no attribute 'Modle'"):
        _ = bray_model.Modle


def test_onnxruntime_keeps_no_journal_of_its_user(tmp_path):
    """It would also send it, by a thread of its own."""
    program = """
import os, bray_model, onnxruntime
from onnx import TensorProto, helper
one = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1])
node = helper.make_node("Identity", ["x"], ["y"])
graph = helper.make_graph([node], "g", [one("x")], [one("y")])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
onnxruntime.InferenceSession(model.SerializeToString())
print([path for path in os.walk(os.environ["HOME"]) if path[2]])
"""
    home = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    home |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=home, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
