"""Settings of a source's buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bray_core.settings.ranges import NonNegativeInt, PositiveInt, check_fields

Workers = Literal["threads", "processes"]
OnError = Literal["raise", "skip"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceConfig:
    """How samples are read, shuffled and joined to batches."""

    batch_size: PositiveInt
    """Number of samples in a batch."""
    epochs: PositiveInt | None = 1
    """Number of times that all samples are given; None begins again for ever."""
    drop_last: bool = False
    """Leave out an epoch's last batch if it is short."""
    shuffle: bool = False
    """Give samples in another order in each epoch."""
    shuffle_size: PositiveInt = 1024
    """Samples that are mixed at a time where a source has no random access (files, streams).

    The order of the files' units is random as well. Typically some row groups' worth; they are
    held in memory.
    """
    seed: NonNegativeInt = 0
    """Seed of the shuffling: the same on all ranks, else their shards overlap."""
    num_workers: NonNegativeInt = 1
    """Workers that read ahead, two reads each; 0 reads in the call of `pop`, in the same order."""
    workers: Workers = "threads"
    """Processes where reading is Python code that keeps a core busy; the source is pickled."""
    on_error: OnError = "raise"
    """Let `pop` raise what cannot be read, or skip and count it."""

    def __post_init__(self) -> None:
        check_fields(self)
