"""What samples are read from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, TypeAlias, runtime_checkable

from bray_core.errors import SpecError
from bray_core.nested import Nested

Rows: TypeAlias = Nested
"""One sample or more of a source: leaves `[n, …]`."""


@runtime_checkable
class Source(Protocol):
    """Samples in units that can be read in any order: a sample, a row group, a file, an episode.

    A unit always gives the same samples in the same order. Reading happens in several threads or,
    if the source can be pickled, processes.
    """

    @property
    def num_units(self) -> int:
        """How many units there are."""
        ...

    @property
    def units_per_read(self) -> int:
        """Units that a worker reads at a time: more than one where they are tiny."""
        ...

    @property
    def is_shuffled_by_order(self) -> bool:
        """Whether each unit is one sample, so that units in random order are a whole shuffle."""
        ...

    def read(self, unit: int) -> Iterator[Rows | SpecError]:
        """Yield the samples of unit 0 to `num_units` − 1, or what is wrong with one of them.

        What it raises ends the unit: its other samples are lost.
        """
        ...

    def describe(self, unit: int) -> str:
        """Return where a unit comes from, for messages: `data.parquet row group 3`."""
        ...


class Stream(Protocol):
    """Samples that can only be read one after the other."""

    @property
    def is_repeatable(self) -> bool:
        """Whether `open` can be called again, for another epoch."""
        ...

    def open(self) -> Iterator[Any]:
        """Begin an epoch: an iterator of samples, nested arrays."""
        ...
