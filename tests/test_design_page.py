"""The tree that docs/design.md draws is the tree of the repository."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def drawn() -> dict[str, set[str]]:
    """Return folder → its folders, of each package and of the repository ("")."""
    page = (ROOT / "docs" / "design.md").read_text()
    (tree,) = re.findall(r"```text\n(packages/\n.*?)```", page, re.DOTALL)
    folders: dict[str, set[str]] = {"": set()}
    package = ""
    for line in tree.splitlines():
        indent = len(line) - len(line.lstrip())
        names = re.match(r"(?:[\w.-]+(?:/[\w.-]+)*/\s*)+", line.lstrip())
        found = set(re.findall(r"([\w./-]+)/(?:\s|$)", names[0])) if names else set()
        if indent == 2:
            (package,) = found
            folders[package] = set()
        else:
            folders[package if indent else ""] |= found
    return folders


def test_the_tree_is_drawn_as_it_is() -> None:
    tree = drawn()
    there = {file.parent.name for file in ROOT.glob("packages/*/pyproject.toml")}
    assert {package.partition("/")[0] for package in tree if package} == there
    for package, folders in tree.items():
        home = ROOT / "packages" / package if package else ROOT
        if package:
            found = {file.parent.name for file in home.glob("*/__init__.py")}
        else:
            found = {path.name for path in home.iterdir() if path.name in folders}
        assert folders == found, f"{package or 'the root'}: drawn, there"
