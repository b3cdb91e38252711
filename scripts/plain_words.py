"""Counts what a machine can count of plain words: `uv run python scripts/plain_words.py`.

A docstring is a sentence that can be read without the line above it, so it does not begin with
`Of`, `That`, `So`, `As` or `For`, nor does the description of an argument. A public class has a
name that no other class of the repository has. Exits with 1 where either is not so.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIRST = re.compile(r"(Of|That|So|As|For)\b")
ARGUMENT = re.compile(r"^\s+\w+: ((?:of|that|so|as|for) .*)", re.MULTILINE)


def fragments(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the words of docstrings and arguments that begin in the middle."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            continue
        text = node.value.value
        if isinstance(text, str):
            if FIRST.match(text.strip()):
                yield node.lineno, text.strip().splitlines()[0]
            for found in ARGUMENT.findall(text):
                yield node.lineno, found


def main() -> int:
    """Print what there is, and return the exit code."""
    homes: dict[str, list[Path]] = defaultdict(list)
    number = 0
    for path in sorted(ROOT.glob("packages/*/src/**/*.py")):
        tree = ast.parse(path.read_text())
        for line, words in fragments(tree):
            number += 1
            print(f"{path.relative_to(ROOT)}:{line}: begins in the middle of a sentence: {words}")
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(path.relative_to(ROOT))
    twice = {name: paths for name, paths in homes.items() if len(paths) > 1}
    for name, paths in sorted(twice.items()):
        print(f"class {name}: in {' and '.join(map(str, paths))}")
    print(f"{number} fragments, {len(twice)} class names that are there more than once")
    return 1 if number or twice else 0


if __name__ == "__main__":
    sys.exit(main())
