"""Bounds that are found by asking agree with what is written in the checks."""

from __future__ import annotations

from dataclasses import dataclass

import jsonschema
import pytest

from bray_core.errors import ConfigError
from bray_core.settings.bounds import bounds
from bray_core.settings.json_schema import json_schema


@dataclass(frozen=True, kw_only=True, slots=True)
class Limited:
    count: int = 3
    """Of anything."""
    pairs: int = 4
    port: int = 0
    rate: float = 0.5
    share: float = 0.5
    weight: float = 0.0
    free: float = -3.0
    below: int = 2
    name: str = "x"

    def __post_init__(self) -> None:
        if self.pairs < 2 or self.pairs % 2:
            raise ConfigError(f"pairs: expected an even number from 2, got {self.pairs}")
        if self.count < 1:
            raise ConfigError(f"count: expected 1 or more, got {self.count}")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port: expected 0 to 65535, got {self.port}")
        if not self.rate > 0:
            raise ConfigError(f"rate: expected more than 0, got {self.rate}")
        if not 0 <= self.share <= 1:
            raise ConfigError(f"share: expected 0 to 1, got {self.share}")
        if self.weight < 0:
            raise ConfigError(f"weight: expected 0 or more, got {self.weight}")
        if self.below >= self.count:
            raise ConfigError(f"count: expected more than below={self.below}, got {self.count}")


def test_each_number_has_the_bounds_that_its_check_has() -> None:
    assert bounds(Limited) == {
        "count": {},  # hangs on another
        "pairs": {"minimum": 2},
        "port": {"minimum": 0, "maximum": 65535},
        "rate": {"exclusiveMinimum": 0},
        "share": {"minimum": 0, "maximum": 1},
        "weight": {"minimum": 0},
        "free": {},
        "below": {},
    }


@pytest.mark.parametrize("settings", [{"port": -1}, {"rate": 0}, {"share": 1.5}, {"pairs": 0}])
def test_a_validator_of_the_schema_keeps_to_them(settings: dict[str, float]) -> None:
    schema = json_schema(Limited)
    jsonschema.validate({"port": 7360, "rate": 1e-3, "share": 1}, schema)
    jsonschema.validate({"rate": "1e-3"}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(settings, schema)
