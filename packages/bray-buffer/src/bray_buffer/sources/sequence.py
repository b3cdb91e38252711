"""Samples in memory, or anything else that has a length and an index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bray_buffer.sources.source import Rows, stack
from bray_core.errors import ConfigError
from bray_core.nested import Nested


class SequenceSource:
    """Samples of a sequence: nested arrays by number.

    Args:
        samples: with `len` and `[number]`; the latter may be called by several threads at once.
    """

    def __init__(self, samples: Sequence[Nested]) -> None:
        if isinstance(samples, dict | str | bytes):
            raise ConfigError(
                f"source: expected a sequence of samples, got {type(samples).__name__}: a list of "
                "dicts, say"
            )
        self._samples = samples
        self.num_units = len(samples)
        self.units_per_read = 64
        self.is_shuffled_by_order = True

    def read(self, units: Sequence[int]) -> Iterator[Rows]:
        """Yield the samples at some places."""
        yield stack([self._samples[unit] for unit in units])

    def describe(self, unit: int) -> str:
        """Return the sample's number."""
        return f"sample {unit}"
