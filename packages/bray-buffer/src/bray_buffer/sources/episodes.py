"""Samples made of recorded episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from bray_buffer.sources.source import Rows, stack
from bray_core.errors import ConfigError
from bray_core.layout import Packed
from bray_core.nested import Nested

T = TypeVar("T")


class EpisodeSource(Generic[T]):
    """Files of one episode each, such as those of `bray_actor.Recorder`.

    What an episode's requests mean is known to the gamecore and the actor alone, so the caller
    says how to make samples of them.

    Args:
        paths: Paths of the files.
        read: Function that reads the episode of a path, such as `bray_actor.read_episode`.
        to_segments: Function that makes the samples of an episode: segments, packed or nested.
    """

    units_per_read = 1
    is_shuffled_by_order = False

    def __init__(
        self,
        paths: Sequence[str | Path],
        read: Callable[[Path], T],
        to_segments: Callable[[T], Iterable[Packed | Nested]],
    ) -> None:
        if not paths:
            raise ConfigError("paths: expected at least one file, got none")
        self._paths = [Path(path) for path in paths]
        self._read = read
        self._to_segments = to_segments
        self.num_units = len(paths)

    def read(self, units: Sequence[int]) -> Iterator[Rows]:
        """Yield the samples of episodes."""
        for unit in units:
            for segment in self._to_segments(self._read(self._paths[unit])):
                yield stack([segment.tree if isinstance(segment, Packed) else segment])

    def describe(self, unit: int) -> str:
        """Return the path."""
        return str(self._paths[unit])
