"""Samples in memory, or anything else that has a length and an index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from bray_buffer.sources.source import Rows
from bray_core import nested
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

    def read(self, unit: int) -> Iterator[Rows]:
        """Yield one sample."""
        yield nested.map(lambda leaf: np.asarray(leaf)[None], self._samples[unit])

    def describe(self, unit: int) -> str:
        """Return the sample's number."""
        return f"sample {unit}"
