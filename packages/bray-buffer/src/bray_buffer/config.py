"""Settings of a queue, of a replay and of a reservoir."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from bray_core.errors import ConfigError
from bray_core.settings.choice import check_choice

WhenFull = Literal["drop_oldest", "drop_newest", "block"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BufferConfig:
    """When a batch is ready, and what happens when the queue is full.

    Exactly one of `batch_steps` and `batch_size` is given.
    """

    batch_steps: int | None = None
    """Steps of a batch: whole segments, until the sum of their `length` reaches it.

    A queue that is full before that gives a smaller batch: choose the capacity accordingly.
    """
    batch_size: int | None = None
    """Segments of a batch."""
    capacity: int = 1024
    """Segments that the queue holds at most; memory is capacity × layout.nbytes."""
    when_full: WhenFull = "drop_oldest"
    """Drop the oldest segment, drop the new one, or let the producer wait."""
    mask: bool = False
    """Add the leaf `mask` `[T]` to batches and clear the padding; needs the leaf `length`."""
    without_time: tuple[str, ...] = ()
    """Top-level leaves that have no time dimension although their first dimension is T."""
    max_policy_lag: int | None = None
    """Drop segments that are more policy versions older than the newest (`set_policy_version`).

    Typically 1 to 20; None keeps all. A segment is as old as its oldest valid step.
    """

    def __post_init__(self) -> None:
        if (self.batch_steps is None) == (self.batch_size is None):
            raise ConfigError(
                "batch_steps: expected exactly one of batch_steps and batch_size, "
                f"got batch_steps={self.batch_steps} and batch_size={self.batch_size}"
            )
        for name in ("batch_steps", "batch_size", "capacity"):
            if getattr(self, name) is not None:
                _check_count(name, getattr(self, name))
        if self.batch_size is not None:
            _check_below_capacity("batch_size", self.batch_size, self.capacity)
        if self.max_policy_lag is not None and self.max_policy_lag < 0:
            raise ConfigError(f"max_policy_lag: expected 0 or more, got {self.max_policy_lag}")
        check_choice("when_full", self.when_full, get_args(WhenFull))


@dataclass(frozen=True, kw_only=True, slots=True)
class ReservoirConfig:
    """Settings of a reservoir."""

    capacity: int
    """Segments of the sample; memory is capacity × layout.nbytes."""
    batch_size: int
    """Segments of a batch, all different."""
    seed: int = 0
    """Of the sampling."""

    def __post_init__(self) -> None:
        for name in ("capacity", "batch_size"):
            _check_count(name, getattr(self, name))
        _check_below_capacity("batch_size", self.batch_size, self.capacity)


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int):
        raise ConfigError(f"{name}: expected a whole number, got {value!r}")
    if value < 1:
        raise ConfigError(f"{name}: expected 1 or more, got {value}")


def _check_below_capacity(name: str, value: int, capacity: int) -> None:
    if value > capacity:
        raise ConfigError(
            f"{name}: {value} exceeds capacity={capacity}: lower the one or raise the other"
        )
