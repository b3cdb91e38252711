"""Protocols of the sources that samples are read from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from bray_core import nested
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
        """Number of units."""
        ...

    @property
    def units_per_read(self) -> int:
        """Units that a worker reads at a time: more than one where they are tiny."""
        ...

    @property
    def is_shuffled_by_order(self) -> bool:
        """Whether each unit is one sample, so that units in random order are a whole shuffle."""
        ...

    def read(self, units: Sequence[int]) -> Iterator[Rows | SpecError]:
        """Yield the samples of some units, 0 to `num_units` − 1, or what is wrong with one.

        If anything is wrong, they are read again one by one, so that it can be named. What is
        raised ends a unit: its other samples are lost.
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


def stack(samples: Sequence[Nested]) -> Rows:
    """Return samples as rows `[n, …]`.

    Raises:
        SpecError: samples differ in structure, dtype or shape.
    """
    rows = [_leaves(sample) for sample in samples]
    paths = list(rows[0])
    if any(list(row) != paths for row in rows):
        raise SpecError(f"samples: expected all to have the leaves {paths}")
    columns = []
    for path, column in zip(paths, zip(*(row.values() for row in rows), strict=True), strict=True):
        leaves = [np.asarray(leaf) for leaf in column]
        first = leaves[0]
        if any(leaf.dtype != first.dtype or leaf.shape != first.shape for leaf in leaves):
            raise SpecError(f"samples: {path}: expected one dtype and shape")
        columns.append(np.array(leaves))
    return nested.unflatten(samples[0], columns)


def _leaves(sample: Nested) -> dict[str, Any]:
    """Return path → leaf in the fixed order; quickly where there is one level of names."""
    if type(sample) is dict and not any(
        isinstance(leaf, dict | list | tuple) for leaf in sample.values()
    ):
        return {name: sample[name] for name in sorted(sample)}
    return nested.flatten(sample)
