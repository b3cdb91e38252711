"""docs/benchmarks.md says what benchmarks/results holds, and curves show all seeds."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
RESULT = {
    "question": "Who is quicker?",
    "command": "uv run python -m benchmarks.micro.who --keep who",
    "date": "2026-11-23",
    "machine": {"cpu": "A kind", "cores": 2, "load": 0.5, "commit": "abc1234-dirty"},
    "tables": [
        {
            "title": "a batch",
            "unit": "ms",
            "base": "bray",
            "rows": [
                {"name": "bray", "median": 2.0, "rounds": [1.5, 2.0, 2.5], "ratio": 1.0},
                {"name": "peer", "median": 12345.6, "rounds": [12345.6], "ratio": 3.14159},
            ],
        }
    ],
    "curves": [
        {
            "title": "A task",
            "x": "frames",
            "y": "mean return",
            "runs": {"ppo": [[[0, 0], [10, 5]], [[0, 0], [10, 15]]]},
        }
    ],
}


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the script, of a folder that is no package."""
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("benchmarks.page")


def test_the_page_is_that_of_the_results(page: ModuleType) -> None:
    assert page.PAGE.read_text() == page.page(page.results()), "run python -m benchmarks.page"
    wanted = {
        f"{name}-{number}.svg"
        for name, content in page.results()
        for number in range(len(content["curves"]))
    }
    assert {file.name for file in page.CURVES.glob("*.svg")} == wanted


def test_a_section_tells_ratio_machine_date_and_command(page: ModuleType) -> None:
    text = page.section("who", RESULT)
    assert "uv run python -m benchmarks.micro.who --keep who" in text
    assert "A kind, 2 cores, load 0.5 at the start; 2026-11-23, commit abc1234." in text
    assert "| peer | 12,346 | 12,346 to 12,346 | 3.14 |" in text
    assert "![A task](curves/who-0.svg)" in text


def test_the_page_lists_what_was_learnt_and_then_the_speeds(page: ModuleType) -> None:
    text = page.page([("quick", {**RESULT, "curves": []}), ("who", RESULT)])
    learning, speed = "Learning: a batch", "Who is quicker?"
    assert f"- [{learning}](#learning-a-batch): bray **2**, peer **12,346**\n" in text
    assert f"- [{speed}](#who-is-quicker): a batch (ms): bray **2**, peer **12,346**\n" in text
    assert text.index(f"## {learning}") < text.index(f"## {speed}")


def test_the_same_curves_make_the_same_drawing(page: ModuleType, tmp_path: Path) -> None:
    (first,) = page.draw("one", RESULT, tmp_path)
    drawn = first.read_bytes()
    page.draw("one", RESULT, tmp_path)
    assert first.read_bytes() == drawn
    assert b"<svg" in drawn
