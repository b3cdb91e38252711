"""The shape of the packages: no circles of imports, and no folder with too many files.

Imports inside functions and under TYPE_CHECKING count, too: they hide a circle, they do not untie
it. What one folder may import of another is held by the layers in `pyproject.toml`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "packages"
PACKAGES = sorted(path for path in ROOT.glob("*/src/*") if (path / "__init__.py").exists())
MOST_MODULES = 25


def module_name(path: Path, source: Path) -> str:
    """Return the dotted name of a file below a folder of sources."""
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules_of(package: Path) -> dict[str, Path]:
    """Return the modules of a package by name."""
    return {module_name(path, package.parent): path for path in package.rglob("*.py")}


def imported_names(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each module that a file imports from, with the name that it takes from it, or `""`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from ((node.module or "", alias.name) for alias in node.names)


def import_graph(modules: Mapping[str, Path]) -> dict[str, set[str]]:
    """Return which modules of a package each of them imports.

    What a module takes from a package's `__init__` counts as an import of that `__init__`; that
    Python loads the `__init__` of every folder on the way to a module does not.
    """
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        graph[name] = set()
        for module, taken in imported_names(path):
            target = f"{module}.{taken}" if f"{module}.{taken}" in modules else module
            if target in modules and target != name:
                graph[name].add(target)
    return graph


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the groups of nodes that all reach each other (Tarjan 1972), without single ones."""
    found: list[list[str]] = []
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []

    def visit(node: str) -> None:
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for target in graph[node]:
            if target not in order:
                visit(target)
            if target in stack:
                lowest[node] = min(lowest[node], lowest[target])
        if lowest[node] == order[node]:
            start = stack.index(node)
            if len(stack) - start > 1:
                found.append(sorted(stack[start:]))
            del stack[start:]

    for node in graph:
        if node not in order:
            visit(node)
    return found


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_no_modules_import_each_other_in_a_circle(package: Path) -> None:
    found = circles(import_graph(modules_of(package)))
    assert not found, "\n".join("circle: " + ", ".join(circle) for circle in found)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_no_folder_has_too_many_files(package: Path) -> None:
    folders = [package, *(path for path in package.rglob("*") if path.is_dir())]
    sizes = {
        folder: len([p for p in folder.glob("*.py") if p.name != "__init__.py"])
        for folder in folders
    }
    too_many = {str(folder): size for folder, size in sizes.items() if size > MOST_MODULES}
    assert not too_many, f"at most {MOST_MODULES} modules a folder: {too_many}"


def test_all_packages_are_looked_at() -> None:
    assert len(PACKAGES) == 8


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({"a": "from p import b", "b": "x = 1"}, []),
        ({"a": "from p import b", "b": "def f():\n    from p.a import x"}, [["p.a", "p.b"]]),
        (
            {"a": "from p.b import x", "b": "if TYPE_CHECKING:\n    import p.c", "c": "import p.a"},
            [["p.a", "p.b", "p.c"]],
        ),
        ({"__init__": "from p.a import x", "a": "from p import x"}, [["p", "p.a"]]),
        ({"__init__": "from p.a import x", "a": "from p import b", "b": ""}, []),
    ],
)
def test_a_circle_is_found_wherever_it_hides(
    texts: dict[str, str], expected: list[list[str]], tmp_path: Path
) -> None:
    (tmp_path / "p").mkdir()
    for name, text in texts.items():
        (tmp_path / "p" / f"{name}.py").write_text(text)
    assert circles(import_graph(modules_of(tmp_path / "p"))) == expected
