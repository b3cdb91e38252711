"""Settings of a queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from bray_core.config import closest
from bray_core.errors import ConfigError

WhenFull = Literal["drop_oldest", "drop_newest", "block"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BufferConfig:
    """When a batch is ready, and what happens when the queue is full.

    Exactly one of `batch_steps` and `batch_size` is given.
    """

    batch_steps: int | None = None
    """Steps of a batch: whole segments, until the sum of their `length` reaches it."""
    batch_size: int | None = None
    """Segments of a batch."""
    capacity: int = 1024
    """Segments that the queue holds at most; memory is capacity × layout.nbytes."""
    when_full: WhenFull = "drop_oldest"
    """Drop the oldest segment, drop the new one, or let the producer wait."""

    def __post_init__(self) -> None:
        if (self.batch_steps is None) == (self.batch_size is None):
            raise ConfigError(
                "batch_steps: expected exactly one of batch_steps and batch_size, "
                f"got batch_steps={self.batch_steps} and batch_size={self.batch_size}"
            )
        for name in ("batch_steps", "batch_size", "capacity"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}: expected 1 or more, got {value}")
        if self.batch_size is not None and self.batch_size > self.capacity:
            raise ConfigError(
                f"batch_size: {self.batch_size} exceeds capacity={self.capacity}: "
                "lower the one or raise the other"
            )
        if self.when_full not in get_args(WhenFull):
            raise ConfigError(
                f"when_full: expected one of {', '.join(get_args(WhenFull))}, "
                f"got {self.when_full!r}{closest(self.when_full, get_args(WhenFull))}"
            )
