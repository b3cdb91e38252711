"""Settings of a source's buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from bray_core.errors import ConfigError
from bray_core.settings.choice import check_choice

Workers = Literal["threads", "processes"]
OnError = Literal["raise", "skip"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceConfig:
    """How samples are read, shuffled and joined to batches."""

    batch_size: int
    """Samples of a batch."""
    epochs: int | None = 1
    """How often all samples are given; None begins again for ever."""
    drop_last: bool = False
    """Leave out an epoch's last batch if it is short."""
    shuffle: bool = False
    """Give samples in another order in each epoch."""
    shuffle_size: int = 1024
    """Samples that are mixed at a time where a source has no random access (files, streams).

    The order of the files' units is random as well. Typically some row groups' worth; they are
    held in memory.
    """
    seed: int = 0
    """Of the shuffling: the same on all ranks, else their shards overlap."""
    num_workers: int = 1
    """That read ahead, two reads each; 0 reads in the call of `pop`. The order is the same."""
    workers: Workers = "threads"
    """Processes where reading is Python code that keeps a core busy; the source is pickled."""
    on_error: OnError = "raise"
    """Let `pop` raise what cannot be read, or skip and count it."""

    def __post_init__(self) -> None:
        least = {"batch_size": 1, "epochs": 1, "shuffle_size": 1, "num_workers": 0, "seed": 0}
        for name, bound in least.items():
            value = getattr(self, name)
            if name == "epochs" and value is None:
                continue
            if not isinstance(value, int) or value < bound:
                raise ConfigError(f"{name}: expected {bound} or more, got {value!r}")
        for name, choices in (("workers", get_args(Workers)), ("on_error", get_args(OnError))):
            check_choice(name, getattr(self, name), choices)
