"""The page's table of algorithms is what they declare; `python tests/combinations/test_table.py`
writes it."""

from __future__ import annotations

import re
from pathlib import Path

from bray import registry
from bray.training.algorithm import load_algorithm

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "networks.md"
_BETWEEN = re.compile(r"(<!-- table: actions -->\n).*?(<!-- end -->)", re.DOTALL)
_HEAD = """\
| algorithm | one choice | several choices | reals | both | memory | gamecores |
|---|---|---|---|---|---|---|
"""


def table() -> str:
    """The table, from the declarations."""
    rows = []
    for name in registry.names():
        algorithm = load_algorithm(name)
        takes = algorithm.takes
        if algorithm.__module__ != f"bray.algorithms.{name}" or takes.plays != "environments":
            continue
        kinds = ("discrete", "multi_discrete", "box", "mixed")
        cells = [
            *(kind in takes.actions for kind in kinds),
            takes.memory,
            takes.gamecores,
        ]
        rows.append(f"| `{name}` | " + " | ".join("yes" if cell else "" for cell in cells) + " |")
    return _HEAD + "\n".join(rows) + "\n"


def test_the_page_says_what_algorithms_declare() -> None:
    assert f"<!-- table: actions -->\n{table()}<!-- end -->" in PAGE.read_text(), (
        f"run: python {Path(__file__).name}"
    )


if __name__ == "__main__":
    written = _BETWEEN.sub(lambda found: found[1] + table() + found[2], PAGE.read_text())
    PAGE.write_text(written)
