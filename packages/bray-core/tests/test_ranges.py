"""Ranges that are declared with a config's fields: what is refused, in which words, the schema."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from bray_core.errors import ConfigError
from bray_core.settings.json_schema import json_schema
from bray_core.settings.ranges import (
    Fraction,
    LayerSizes,
    NonNegativeFloat,
    Port,
    PositiveFloat,
    PositiveInt,
    Range,
    check_fields,
    check_value,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExampleConfig:
    rate: PositiveFloat = 1e-3
    epochs: PositiveInt = 10
    gamma: Fraction = 0.99
    weight: NonNegativeFloat = 0.5
    port: Port = 0
    hidden: LayerSizes = (64, 64)
    clip: PositiveFloat | None = None
    pairs: Annotated[int, Range(minimum=2, multiple_of=2)] = 4
    bar: Annotated[float, Range(above=0, allow_infinity=True)] = math.inf
    angle: Annotated[float, Range()] = -1.0
    mode: Literal["a", "b"] = "a"
    name: str = ""

    def __post_init__(self) -> None:
        check_fields(self)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("rate", 0, "rate: expected more than 0, got 0"),
        ("rate", math.nan, "rate: expected more than 0, got nan"),
        ("rate", math.inf, "rate: expected more than 0, got inf"),
        ("rate", "1", "rate: expected a number, got '1'"),
        ("rate", True, "rate: expected a number, got True"),
        ("epochs", 0, "epochs: expected 1 or more, got 0"),
        ("epochs", 1.5, "epochs: expected a whole number, got 1.5"),
        ("gamma", 1.01, "gamma: expected 0 to 1, got 1.01"),
        ("weight", -0.1, "weight: expected 0 or more, got -0.1"),
        ("port", 65536, "port: expected 0 to 65535, got 65536"),
        ("hidden", (), "hidden: expected one or more numbers, got ()"),
        ("hidden", (64, 0), "hidden: expected numbers of 1 or more, got (64, 0)"),
        ("clip", -1.0, "clip: expected more than 0, got -1.0"),
        ("pairs", 5, "pairs: expected 2 or more, a multiple of 2, got 5"),
        ("bar", math.nan, "bar: expected more than 0, got nan"),
        ("angle", math.inf, "angle: expected a finite number, got inf"),
        ("mode", "c", "mode: expected one of a, b, got 'c'"),
    ],
)
def test_a_value_out_of_range_is_refused_in_words(field: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        ExampleConfig(**{field: value})
    assert str(refused.value).startswith(words)


def test_a_number_beyond_all_floats_is_refused_in_words() -> None:
    for value in (10**400, -(10**5000)):
        with pytest.raises(ConfigError, match=r"^epochs: expected 1 or more, .* over"):
            ExampleConfig(epochs=value)


def test_what_is_in_range_is_taken() -> None:
    taken = ExampleConfig(epochs=np.int64(3), rate=np.float32(0.5), clip=1.0, hidden=(8,), gamma=1)
    assert taken.epochs == 3


def test_the_schema_has_what_is_declared() -> None:
    properties = json_schema(ExampleConfig)["properties"]
    assert properties["epochs"] == {"type": "integer", "minimum": 1, "default": 10}
    assert properties["rate"]["anyOf"][0] == {"type": "number", "exclusiveMinimum": 0}
    assert properties["port"]["maximum"] == 65535
    assert properties["pairs"]["multipleOf"] == 2
    assert properties["hidden"]["items"] == {"type": "integer", "minimum": 1}
    assert properties["hidden"]["minItems"] == 1
    assert properties["clip"]["anyOf"][0]["anyOf"][0]["exclusiveMinimum"] == 0


def test_an_argument_is_checked_as_a_field_is() -> None:
    check_value("port", None, Port | None)
    check_value("port", 80, Port | None)
    for value, words in (
        (-1, "port: expected 0 to 65535, got -1"),
        (1.5, "port: expected a"),
    ):
        with pytest.raises(ConfigError, match=words):
            check_value("port", value, Port | None)
    with pytest.raises(ConfigError, match="port: expected a whole number, got None"):
        check_value("port", None, Port)
