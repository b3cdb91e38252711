"""JSON Schema of configuration, judged by a validator of that standard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import jsonschema
import pytest

from bray_core.settings.json_schema import descriptions, json_schema


@dataclass(frozen=True, kw_only=True, slots=True)
class Base:
    """Of both."""

    rate: float = 1e-3
    """How quick,
    per second."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part(Base):
    """A part.

    More about it.
    """

    sizes: tuple[int, ...] = (1, 2)
    kind: Literal["queue", "replay"] = "queue"
    """Which."""
    name: str | None = None
    span: tuple[int, float] = (0, 1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Whole:
    needed: int
    part: Part = field(default_factory=Part)
    flag: bool = False
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    path: Path = field(default=Path("here"), metadata={"description": "Where."})
    layers: list[int] = field(default_factory=list)
    weights: dict[str, float] = field(default_factory=dict)
    device: int | str = "cpu"


SCHEMA = json_schema(Whole)


@pytest.mark.parametrize(
    "settings",
    [
        {"needed": 1},
        {"needed": 1, "part": None},
        {"needed": 1, "kwargs": {"size": 4, "walls": [[1]]}},
        {"needed": 1, "flag": True, "path": "there", "part": {"rate": 2, "sizes": [], "name": "x"}},
        {"needed": 1, "layers": [8], "weights": {"win": 1.5}, "device": 3},
        {"needed": 1, "part": {"rate": "1e-3", "kind": "replay", "span": [1, 2.5], "name": None}},
    ],
)
def test_what_the_loader_takes_is_valid(settings: dict[str, Any]) -> None:
    jsonschema.validate(settings, SCHEMA, jsonschema.Draft202012Validator)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"needed": 1.5},
        {"needed": 1, "flag": 1},
        {"needed": 1, "kwargs": [4]},
        {"needed": 1, "other": 1},
        {"needed": 1, "layers": 8},
        {"needed": 1, "layers": ["x"]},
        {"needed": 1, "weights": {"win": "much"}},
        {"needed": 1, "device": [3]},
        {"needed": 1, "part": {"kind": "quene"}},
        {"needed": 1, "part": {"sizes": ["x"]}},
        {"needed": 1, "part": {"span": [1, 2, 3]}},
        {"needed": 1, "part": {"rate": "fast"}},
    ],
)
def test_what_it_refuses_is_not(settings: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(settings, SCHEMA, jsonschema.Draft202012Validator)


def test_descriptions_and_defaults_are_those_of_the_class() -> None:
    part = SCHEMA["properties"]["part"]
    assert part["description"] == "A part."
    assert part["properties"]["rate"]["description"] == "How quick, per second."
    assert part["properties"]["rate"]["default"] == 1e-3
    assert part["properties"]["sizes"]["default"] == [1, 2]
    assert SCHEMA["properties"]["path"] == {
        "type": "string", "description": "Where.", "default": "here",
    }  # fmt: skip
    assert descriptions(Part) == {"rate": "How quick, per second.", "kind": "Which."}
