"""The tutorials of docs/tutorials: notebooks whose cells run in order, in an empty folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
TIMEOUT_S = 240
"""Each takes some 30 s of a core."""
MOST_LINES = 60


def cells(notebook: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(notebook.read_text())["cells"]
    return found


def code(notebook: Path) -> str:
    return "\n".join("".join(c["source"]) for c in cells(notebook) if c["cell_type"] == "code")


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda n: n.stem)
def test_a_tutorial_is_short_and_holds_no_output(notebook: Path) -> None:
    assert sum(bool(line.strip()) for line in code(notebook).splitlines()) < MOST_LINES
    assert cells(notebook)[0]["cell_type"] == "markdown"
    assert not any(cell.get("outputs") for cell in cells(notebook))


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda n: n.stem)
def test_a_tutorial_runs(notebook: Path, tmp_path: Path) -> None:
    (tmp_path / "tutorial.py").write_text(code(notebook))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    program = subprocess.Popen(
        [sys.executable, "tutorial.py"],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = program.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(program.pid, signal.SIGKILL)  # with the server that it started
        output, _ = program.communicate()
        pytest.fail(f"not done within {TIMEOUT_S} s:\n{output}")
    if program.returncode:
        with_children(program.pid)
    assert program.returncode == 0, output


def with_children(group: int) -> None:
    """End what a tutorial that failed has left behind."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return
