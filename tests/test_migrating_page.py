"""What the tables of the migration guide name on bray's side exists, with those defaults."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from bray.training.algorithm import PARTS, load_algorithm
from bray_core import cli

DOCS = Path(__file__).parent.parent / "docs"
ALGORITHMS = {
    p.stem for p in Path(importlib.import_module("bray.algorithms").__path__[0]).glob("*.py")
}
SPAN = re.compile("`([^`]+)`")


def rows() -> list[dict[str, str]]:
    """Return the rows of all tables that have a column `bray`: their cell and its default."""
    found = []
    page = (DOCS / "guides" / "migrating.md").read_text()
    for table in re.findall(r"(?:^\|.*\|\n)+", page, re.MULTILINE):
        head, _, *lines = (
            [c.strip() for c in re.split(r"\|", ln)[1:-1]] for ln in table.split("\n")[:-1]
        )
        if "bray" in head:
            at = head.index("bray")
            default = at + 1 if len(head) > at + 1 else None
            found += [
                {"bray": line[at], "default": "" if default is None else line[default]}
                for line in lines
            ]
    return found


def config_field(name: str) -> Any:
    name, _, field = name.partition(".")
    algorithm = load_algorithm(name)
    fields = {
        f"{part}.{f.name}": f.default
        for part in PARTS
        for f in dataclasses.fields(algorithm.config_of(part))
    }
    known = {key.partition(".")[2]: value for key, value in fields.items()}
    given = {key.partition(".")[2]: value for key, value in algorithm.defaults("").items()}
    return {**known, **given}[field]


def help_of(command: str) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), pytest.raises(SystemExit) as left:
        cli.main([command, "--help"])
    assert left.value.code == 0, command
    return said.getvalue()


def check(name: str) -> None:
    """Assert that a name exists: of a setting, a command, an option, a metric or in a module."""
    if name.partition(".")[0] in ALGORITHMS:
        config_field(name)
    elif name.startswith("bray "):
        help_of(name.split()[1])
    elif name.startswith("--"):
        assert f"{name} " in help_of("train"), name
    elif "/" in name:
        assert f"`{name}`" in (DOCS / "metrics.md").read_text(), name
    else:
        assert name.startswith("bray"), name
        find(name)


def find(name: str) -> Any:
    parts = name.split(".")
    for size in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:size]))
        except ModuleNotFoundError:
            continue
        for part in parts[size:]:
            found = getattr(found, part)
        return found
    raise AssertionError(name)


def test_names_exist() -> None:
    names = {name for row in rows() for name in SPAN.findall(row["bray"])}
    assert len(names) > 50
    for name in sorted(names):
        check(name)


def test_defaults_are_those_of_the_code() -> None:
    checked = 0
    for row in rows():
        names = SPAN.findall(row["bray"])
        if len(names) == 1 and names[0].partition(".")[0] in ALGORITHMS and row["default"]:
            assert config_field(names[0]) == ast.literal_eval(row["default"]), names[0]
            checked += 1
    assert checked > 30


@pytest.mark.parametrize("name", ["ppo.nothing", "bray_actor.Nobody", "trainer/nothing", "--no"])
def test_a_name_that_is_gone_is_seen(name: str) -> None:
    with pytest.raises((KeyError, AttributeError, AssertionError)):
        check(name)
