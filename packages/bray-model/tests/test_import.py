import subprocess
import sys

import pytest

import bray_model

HEAVY = ("torch", "ray", "tensorboard", "onnx", "onnxruntime", "aiohttp")


def modules_after(code: str) -> set[str]:
    code += "\nimport sys; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


def test_importing_loads_nothing_heavy():
    loaded = modules_after("from bray_model import *\nimport bray_model.commands")
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
