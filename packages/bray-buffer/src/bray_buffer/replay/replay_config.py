"""Settings of a replay."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from bray_core.errors import ConfigError
from bray_core.settings.choice import check_choice

Unit = Literal["segment", "transition", "sequence"]
Sampler = Literal["uniform", "prioritized"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayConfig:
    """What a replay stores, what its batches are made of, and how they are drawn."""

    capacity: int
    """Segments kept, or steps if the unit is another; the oldest segments are overwritten."""
    batch_size: int
    """Items of a batch: segments, transitions or sequences."""
    min_size: int = 1
    """Segments or steps, as in `capacity`, that must be there before the first batch."""
    seed: int = 0
    """Of the sampler."""
    unit: Unit = "segment"
    """Whole segments `[B, T, …]`, single transitions `[B, …]`, or parts of segments."""
    n_step: int = 1
    """Transitions: rewards summed, fewer at a segment's end (typical: 1 to 5). From 2 on, the
    batch's `reward` is float32, or float64 where rewards are: their sum is no whole number."""
    gamma: float = 0.99
    """Transitions: discount per step of that sum, 0 to 1."""
    frame_stack: Mapping[str, int] = field(default_factory=dict)
    """Transitions, sequences: leaves of the observation that stack the newest frames, oldest
    first, such as `{"observation": 0}` for `[4, 84, 84]` or `{"observation/image": -1}` for
    `[84, 84, 4]`: path → axis in one observation. Each frame is stored once."""
    sequence_length: int | None = None
    """Sequences: steps to train on."""
    burn_in: int = 0
    """Sequences: steps before these, to warm a recurrent state up."""
    sampler: Sampler = "uniform"
    """Both draw with replacement; `prioritized` in proportion to `priority ** alpha`."""
    alpha: float = 0.6
    """Prioritized: 0 draws uniformly, 1 in proportion to the priorities."""
    beta: float = 0.4
    """Prioritized: 0 leaves the bias, 1 corrects it whole by weights; `set_beta` changes it."""
    epsilon: float = 1e-6
    """Prioritized: added to every priority, so that an error of 0 can still be drawn."""
    samples_per_insert: float | None = None
    """Items drawn per segment or step inserted; None limits neither side."""
    error_margin: float | None = None
    """Items that may be drawn too many or too few, with `samples_per_insert`."""

    def __post_init__(self) -> None:
        for name, least in (("capacity", 1), ("batch_size", 1), ("min_size", 1), ("n_step", 1)):
            _check_count(name, getattr(self, name), least)
        _check_count("burn_in", self.burn_in, 0)
        if self.sequence_length is not None:
            _check_count("sequence_length", self.sequence_length, 1)
        if self.min_size > self.capacity:
            raise ConfigError(
                f"min_size: {self.min_size} exceeds capacity={self.capacity}: "
                "lower the one or raise the other"
            )
        check_choice("unit", self.unit, get_args(Unit))
        check_choice("sampler", self.sampler, get_args(Sampler))
        for name, most in (("gamma", 1.0), ("alpha", math.inf), ("beta", 1.0), ("epsilon", 1.0)):
            if not 0 <= getattr(self, name) <= most:  # also NaN
                raise ConfigError(f"{name}: expected 0 to {most:g}, got {getattr(self, name)}")
        self._check_unit()
        if (self.samples_per_insert is None) != (self.error_margin is None):
            raise ConfigError(
                "error_margin: expected samples_per_insert and error_margin, or none of them, got "
                f"samples_per_insert={self.samples_per_insert}, error_margin={self.error_margin}"
            )

    def _check_unit(self) -> None:
        """Refuse what the unit has no use for, since whoever set it expects something of it."""
        if (self.unit == "sequence") != (self.sequence_length is not None):
            raise ConfigError(
                'sequence_length: expected it with unit="sequence" and only there, '
                f"got {self.sequence_length} with unit={self.unit!r}"
            )
        for name, default, units in (
            ("burn_in", 0, ("sequence",)),
            ("n_step", 1, ("transition",)),
            ("frame_stack", {}, ("transition", "sequence")),
        ):
            if self.unit not in units and getattr(self, name) != default:
                raise ConfigError(
                    f"{name}: expected it with unit={' or '.join(map(repr, units))}, "
                    f"got {getattr(self, name)} with unit={self.unit!r}"
                )


def _check_count(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{name}: expected a whole number, got {value!r}")
    if value < least:
        raise ConfigError(f"{name}: expected {least} or more, got {value}")
