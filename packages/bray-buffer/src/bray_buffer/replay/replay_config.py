"""Settings of a replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from bray_core.errors import ConfigError
from bray_core.settings.ranges import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    check_fields,
)

Unit = Literal["segment", "transition", "sequence"]
SamplerKind = Literal["uniform", "prioritized"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayConfig:
    """What a replay stores, what its batches are made of, and how they are drawn."""

    capacity: PositiveInt
    """Segments kept, or steps if the unit is another; the oldest segments are overwritten. Too
    small, and training forgets what it saw; large ones cost memory. Usual: 1e5 to 1e6 steps."""
    batch_size: PositiveInt
    """Items of a batch: segments, transitions or sequences. Usual: 32 to 512."""
    min_size: PositiveInt = 1
    """Segments or steps, as in `capacity`, that must be there before the first batch. Too few, and
    the first updates fit a handful of steps. Usual: 1e3 to 1e5 steps."""
    seed: NonNegativeInt = 0
    """Seed of the sampler."""
    unit: Unit = "segment"
    """Whole segments `[B, T, …]`, single transitions `[B, …]`, or parts of segments."""
    n_step: PositiveInt = 1
    """Transitions: number of rewards that are summed, fewer at a segment's end. More carry rewards
    back faster, with more variance and bias from old policies. Usual: 1 to 5. From 2 on, the
    batch's `reward` is float32, or float64 where rewards are: their sum is no whole number."""
    gamma: Fraction = 0.99
    """Transitions: discount per step of that sum. Usual: 0.97 to 0.999."""
    frame_stack: Mapping[str, int] = field(default_factory=dict)
    """Transitions, sequences: leaves of the observation that stack the newest frames, oldest
    first, such as `{"observation": 0}` for `[4, 84, 84]` or `{"observation/image": -1}` for
    `[84, 84, 4]`: path → axis in one observation. Each frame is stored once."""
    sequence_length: PositiveInt | None = None
    """Sequences: number of steps to train on. Usual: 20 to 80."""
    burn_in: NonNegativeInt = 0
    """Sequences: number of steps before these, to warm a recurrent state up. Usual: 0 to 40."""
    sampler: SamplerKind = "uniform"
    """Both draw with replacement; `prioritized` in proportion to `priority ** alpha`."""
    alpha: NonNegativeFloat = 0.6
    """Prioritized: 0 draws uniformly, 1 in proportion to the priorities. Usual: 0.5 to 0.7."""
    beta: Fraction = 0.4
    """Prioritized: 0 leaves the bias, 1 corrects it whole by weights; `set_beta` changes it. Usual:
    from 0.4 up to 1 in the course of training."""
    epsilon: Fraction = 1e-6
    """Prioritized: added to every priority, so that an error of 0 can still be drawn."""
    samples_per_insert: PositiveFloat | None = None
    """Items drawn per segment or step inserted; None limits neither side. Higher values learn more
    from each step, and overfit to old data when too high."""
    error_margin: float | None = None
    """Items that may be drawn too many or too few, with `samples_per_insert`."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.min_size > self.capacity:
            raise ConfigError(
                f"min_size: {self.min_size} exceeds capacity={self.capacity}: "
                "lower the one or raise the other"
            )
        self._check_unit()
        if (self.samples_per_insert is None) != (self.error_margin is None):
            raise ConfigError(
                "error_margin: expected samples_per_insert and error_margin, or none of them, got "
                f"samples_per_insert={self.samples_per_insert}, error_margin={self.error_margin}"
            )

    def _check_unit(self) -> None:
        """Refuse settings that the unit does not use: whoever set them expects an effect."""
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
