"""What importing each package loads, and what every package has.

Who may import whom in the sources is held by import-linter's contracts in pyproject.toml; they do
not notice what an import of a package really loads.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DISTRIBUTIONS = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))
MODULES = [path.name.replace("-", "_") for path in DISTRIBUTIONS]
HEAVY = {"ray", "torch", "tensorboard", "onnxruntime", "aiohttp", "rich", "gymnasium"}
NEEDS_TORCH = {"bray_trainer", "bray_algo"}
MAY_LOAD: dict[str, set[str]] = {
    "bray_algo": set(),
    "bray_core": set(),
    "bray_model": {"bray_core", "bray_server"},
    "bray_actor": {"bray_core", "bray_server"},
}
"""What of bray a package may bring with it; else bray_core alone."""


def test_there_are_eight() -> None:
    assert len(MODULES) == 8


@pytest.mark.parametrize("module", MODULES)
def test_importing_a_package_loads_nothing_heavy(module: str) -> None:
    loaded = loaded_by(f"import {module}")
    assert not loaded & (HEAVY - {"torch"} if module in NEEDS_TORCH else HEAVY)
    others = loaded & set(MODULES) - {module}
    assert others <= MAY_LOAD.get(module, {"bray_core"})


def test_loading_the_commands_loads_nothing_heavy() -> None:
    script = "from importlib.metadata import entry_points as e\n[x.load() for x in e(group={!r})]"
    assert not loaded_by(script.format("bray.commands")) & HEAVY
    assert not loaded_by(script.format("bray.actors")) & HEAVY


def loaded_by(script: str) -> set[str]:
    """Top-level names of the modules that a new process has loaded after `script`."""
    script += "\nimport sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return {name.split(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize("module", MODULES)
def test_all_agrees_with_what_there_is(module: str) -> None:
    package = importlib.import_module(module)
    assert len(package.__all__) == len(set(package.__all__)) <= 17
    for name in package.__all__:
        assert getattr(package, name) is not None


@pytest.mark.parametrize("path", DISTRIBUTIONS, ids=lambda p: p.name)
def test_every_package_is_complete(path: Path) -> None:
    module = path.name.replace("-", "_")
    for file in ("README.md", "CHANGELOG.md", "LICENSE", f"src/{module}/py.typed"):
        assert (path / file).is_file(), file
    project = tomllib.loads((path / "pyproject.toml").read_text())["project"]
    assert project["name"] == path.name
    assert project["license"] == "MIT"
    for key in ("version", "description", "readme", "requires-python", "authors", "classifiers"):
        assert project[key], key
    headings = re.findall(r"^## (.+)", (path / "CHANGELOG.md").read_text(), re.MULTILINE)
    newest = headings[0].split()[0]  # `scripts/release.py` gives what is unreleased a version
    assert newest in ("Unreleased", project["version"]), headings
    assert "```python" in (path / "README.md").read_text()
