"""The gallery: pictures that move and are small, commands that there are, figures of trials."""

from __future__ import annotations

import json
import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from bray.zoo.entries import find

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "gallery"
RECORDS: list[dict[str, Any]] = json.loads((FOLDER / "pictures.json").read_text())
PAGE = (ROOT / "docs" / "gallery.md").read_text()
_MOST, _MOST_OF_ALL = 200_000, 1_500_000
"""Bytes of a picture, and of all."""


def test_the_page_is_that_of_the_records() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "gallery.py"))
    assert script["page"](RECORDS) == PAGE, "run `python scripts/gallery.py`"


def test_every_picture_on_the_page_moves_and_is_small() -> None:
    named = set(re.findall(r"\]\(gallery/([\w-]+\.webp)\)", PAGE))
    files = {file.name: file.stat().st_size for file in FOLDER.glob("*.webp")}
    assert named == set(files)
    assert len(named) >= 5
    assert max(files.values()) <= _MOST
    assert sum(files.values()) <= _MOST_OF_ALL
    for name in files:
        with Image.open(FOLDER / name) as picture:
            assert getattr(picture, "n_frames", 1) > 3, name
            assert picture.info["loop"] == 0, name
            assert picture.width <= 400, name


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["name"])
def test_its_command_trains_what_the_page_says(record: dict[str, Any]) -> None:
    program, verb, option, name, *_ = shlex.split(record["command"])
    assert (program, verb, option) == ("bray", "train", "--zoo")
    entry = find(name)
    assert entry.name == name
    assert entry.algorithm == record["algorithm"]
    assert entry.task.rpartition(":")[2] == record["task"]
    assert f"`{record['command']}`" in PAGE


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["name"])
def test_its_figures_are_those_of_a_run(record: dict[str, Any]) -> None:
    words = shlex.split(record["command"])
    entry = find(words[3])
    options = dict(zip(words[4::2], words[5::2], strict=True))
    budget = int(options.get("--frames") or entry.goal.get("max_frames") or 1_000_000)
    assert record["frames"] <= 1.05 * budget
    assert record["episodes"] == int(options.get("--episodes", 100))
    goal = entry.goal["episode_return"]
    assert goal is None or record["evaluation"] >= goal or entry.goal["evaluate_at"] > goal
    assert record["cpu_seconds"] > 0
    assert record["seed"] == 1
