"""What `import bray_core` costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import bray_core

MODULES = sorted(path.stem for path in Path(bray_core.__path__[0]).glob("[a-z]*.py"))
HEAVY = {"aiohttp", "onnxruntime", "ray", "tensorboard", "torch", "uvloop"}


def loaded_by(statement: str) -> set[str]:
    """Top-level names of the modules that a new process has loaded after `statement`."""
    script = f"{statement}\nimport sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    return {name.split(".")[0] for name in done.stdout.split()}


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert not loaded_by("import bray_core") & {*HEAVY, "numpy", "yaml"}


def test_using_every_public_name_loads_nothing_heavy() -> None:
    assert not loaded_by("from bray_core import *") & HEAVY


@pytest.mark.parametrize("module", [name for name in MODULES if name != "remote"])
def test_importing_a_module_loads_nothing_heavy(module: str) -> None:
    assert not loaded_by(f"import bray_core.{module}") & HEAVY
