"""What `import bray_core` costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import bray_core

SOURCE = Path(bray_core.__path__[0])
MODULES = sorted(
    ".".join(("bray_core", *path.relative_to(SOURCE).with_suffix("").parts))
    for path in SOURCE.rglob("[a-z]*.py")
    if path.parent.name != "remote"
)
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


def test_importing_any_module_but_those_of_ray_loads_nothing_heavy() -> None:
    """The tensorboard sink imports tensorboard when it is made."""
    assert "bray_core.trials.trial" in MODULES
    assert not loaded_by(f"import {', '.join(MODULES)}") & HEAVY
