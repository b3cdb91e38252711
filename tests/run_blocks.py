"""Runs Python blocks of a document, one after another in one interpreter: DOCUMENT LINE [LINE …].

A line is that of a block's opening fence. Each block is a program of its own, with fresh globals,
whose line numbers in errors are the document's. Importing torch once instead of once a block is
what this saves.
"""

from __future__ import annotations

import runpy
import sys
import textwrap
from pathlib import Path


def main(document: Path, fences: list[int]) -> None:
    """Run the blocks in the working directory, which also holds them as files."""
    lines = document.read_text().splitlines(keepends=True)
    sys.path[0] = str(Path.cwd())  # as for `python FILE` of a file in this folder
    for fence in fences:
        indent = lines[fence - 1].partition("```")[0]
        end = lines.index(f"{indent}```\n", fence)
        program = Path(f"{document.stem}-line-{fence}.py")
        program.write_text("\n" * fence + textwrap.dedent("".join(lines[fence:end])))
        runpy.run_path(str(program), run_name="__main__")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(line) for line in sys.argv[2:]])
