"""What importing each package loads, who may import Ray and torch, and what every package has."""

from __future__ import annotations

import ast
import importlib
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
MAY_IMPORT_TORCH = {
    "bray_model/torch_engine.py",
    "bray_model/export.py",
    "bray_model/definition.py",
    "bray/train.py",
    "bray/recipes/ppo.py",
}


def imports_of(file: Path) -> set[str]:
    """Top-level names of what a file imports anywhere, but for type checking alone."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(file.read_text()))
    return found


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
    assert len(package.__all__) == len(set(package.__all__)) <= 16
    for name in package.__all__:
        assert getattr(package, name) is not None


SOURCES = sorted(ROOT.glob("packages/*/src/**/*.py"))


@pytest.mark.parametrize("file", SOURCES, ids=lambda f: str(f.relative_to(ROOT / "packages")))
def test_ray_and_torch_stay_in_their_files(file: Path) -> None:
    imported = imports_of(file)
    if file.name != "remote.py":
        assert "ray" not in imported
    package = file.relative_to(ROOT / "packages").parts[2]
    where = str(file.relative_to(ROOT / "packages" / package.replace("_", "-") / "src"))
    if package not in NEEDS_TORCH and where not in MAY_IMPORT_TORCH:
        assert "torch" not in imported
    if where != "bray_core/tensorboard.py":
        assert "tensorboard" not in imported


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
    assert f"## {project['version']}" in (path / "CHANGELOG.md").read_text()
    assert "```python" in (path / "README.md").read_text()
