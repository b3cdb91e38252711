"""Schedules in place of numbers: their values, their settings, their JSON Schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from bray_core.config import from_mapping, to_mapping
from bray_core.errors import ConfigError
from bray_core.settings.json_schema import json_schema
from bray_core.settings.ranges import check_fields
from bray_core.settings.schedule import (
    Schedule,
    ScheduledNonNegativeFloat,
    ScheduledPositiveFloat,
    value_at,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Two numbers that may be schedules."""

    rate: ScheduledPositiveFloat = 1.0
    """A number above 0."""
    weight: ScheduledNonNegativeFloat | None = None
    """A number of 0 or more, or none."""

    def __post_init__(self) -> None:
        check_fields(self)


@pytest.mark.parametrize(
    ("shape", "values"),
    [
        ("linear", [10.0, 7.5, 5.0, 2.5, 0.0, 0.0]),
        ("cosine", [10.0, 8.5355339, 5.0, 1.4644661, 0.0, 0.0]),
        ("constant", [10.0, 10.0, 10.0, 10.0, 0.0, 0.0]),
    ],
)
def test_it_goes_from_start_to_end(shape: Any, values: list[float]) -> None:
    schedule = Schedule(start=10, end=0, frames=400, shape=shape)
    assert [schedule.at(100 * i) for i in range(6)] == pytest.approx(values)
    assert value_at(schedule, 10**9) == 0
    assert value_at(3.0, 10**9) == 3.0


def test_a_setting_is_a_number_or_a_schedule() -> None:
    written = {"start": "3e-4", "end": 1e-5, "frames": "1e6"}
    found = from_mapping({"rate": written, "weight": 0}, Config)
    assert found == Config(rate=Schedule(start=3e-4, end=1e-5, frames=1e6), weight=0.0)
    assert from_mapping(to_mapping(found), Config) == found
    assert from_mapping({"weight": None}, Config) == Config()


def test_a_number_above_0_may_fall_to_0() -> None:
    rate = from_mapping({"rate": {"start": 1, "end": 0, "frames": 10}}, Config).rate
    assert [value_at(rate, frames) for frames in (0, 5, 10, 20)] == [1, 0.5, 0, 0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rate": {"start": 0, "end": 1, "frames": 9}}, "rate.start: expected more than 0, got 0"),
        ({"rate": {"start": 1, "end": -1, "frames": 9}}, "rate.end: expected more than 0, got -1"),
        ({"rate": {"start": 1, "end": 1, "frames": 0}}, "rate.frames: expected more than 0"),
        ({"rate": {"start": 1, "frames": 9}}, "rate.end: missing"),
        ({"rate": {"start": ".nan", "end": 1, "frames": 9}}, "rate.start: expected a number"),
        ({"rate": {"start": 1, "end": 1, "frames": 9, "shape": "cos"}}, "did you mean 'cosine'"),
        ({"rate": [1, 2]}, "rate: expected a number or {start, end, frames, shape}, got"),
        ({"rate": "linear"}, "rate: expected a number or {start, end, frames, shape}, got 'linear"),
        ({"rate": None}, "rate: expected a number or {start, end, frames, shape}, got None"),
        ({"weight": {"start": -1, "end": 1, "frames": 9}}, "weight.start: expected 0 or more"),
    ],
)
def test_what_is_neither_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_mapping(given, Config)


def test_its_json_schema_has_both() -> None:
    rate, weight = (json_schema(Config)["properties"][name]["anyOf"] for name in Config.__slots__)
    assert [one["type"] for one in rate] == ["number", "string", "object"]
    assert [one["type"] for one in weight] == ["number", "string", "object", "null"]
    assert rate[0]["exclusiveMinimum"] == 0
    assert rate[2]["required"] == ["start", "end", "frames"]
