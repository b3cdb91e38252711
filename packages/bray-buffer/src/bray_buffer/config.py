"""Settings of a queue and of a reservoir."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bray_core.errors import ConfigError
from bray_core.settings.ranges import NonNegativeInt, PositiveInt, check_fields

WhenFull = Literal["drop_oldest", "drop_newest", "block"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BufferConfig:
    """When a batch is ready, and what happens when the queue is full.

    Exactly one of `batch_steps` and `batch_size` is given.
    """

    batch_steps: PositiveInt | None = None
    """Steps of a batch: whole segments, until the sum of their `length` reaches it.

    A queue that is full before that gives a smaller batch: choose the capacity accordingly.
    """
    batch_size: PositiveInt | None = None
    """Segments of a batch. Larger batches give smoother gradients, but fewer of them."""
    capacity: PositiveInt = 1024
    """Largest number of segments in the queue; memory is capacity × layout.nbytes. Too large, and
    segments are old when they are trained on; too small, and players wait or segments are lost.
    Usual: 2 to 8 batches."""
    when_full: WhenFull = "drop_oldest"
    """Drop the oldest segment, drop the new one, or let the producer wait."""
    mask: bool = False
    """Add the leaf `mask` `[T]` to batches and clear the padding; needs the leaf `length`."""
    without_time: tuple[str, ...] = ()
    """Top-level leaves that have no time dimension although their first dimension is T."""
    max_policy_lag: NonNegativeInt | None = None
    """Drop segments that are more policy versions older than the newest (`set_policy_version`).

    Small values keep training close to on-policy and throw more away. Usual: 1 to 20; None keeps
    all. A segment is as old as its oldest valid step.
    """

    def __post_init__(self) -> None:
        if (self.batch_steps is None) == (self.batch_size is None):
            raise ConfigError(
                "batch_steps: expected exactly one of batch_steps and batch_size, "
                f"got batch_steps={self.batch_steps} and batch_size={self.batch_size}"
            )
        check_fields(self)
        if self.batch_size is not None:
            _check_below_capacity("batch_size", self.batch_size, self.capacity)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReservoirConfig:
    """Settings of a reservoir."""

    capacity: PositiveInt
    """Segments of the sample; memory is capacity × layout.nbytes."""
    batch_size: PositiveInt
    """Segments of a batch, all different."""
    seed: NonNegativeInt = 0
    """Seed of the sampling."""

    def __post_init__(self) -> None:
        check_fields(self)
        _check_below_capacity("batch_size", self.batch_size, self.capacity)


def _check_below_capacity(name: str, value: int, capacity: int) -> None:
    if value > capacity:
        raise ConfigError(
            f"{name}: {value} exceeds capacity={capacity}: lower the one or raise the other"
        )
