"""Rows that several sessions sent, side by side in one batch whose size never changes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bray_core import nested
from bray_core.errors import SpecError
from bray_core.nested import Nested


class RowBlock:
    """Arrays `[size, ...]` that hold each row at a place of its own; other places hold zeros.

    Args:
        size: Number of places.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._columns: Nested = None

    def fill(self, rows: Mapping[int, Nested]) -> Nested:
        """Return the batch that holds these rows at their places; the next one overwrites it.

        Args:
            rows: Trees of arrays by place, all of the same structure, shapes and dtypes.

        Raises:
            SpecError: a row is unlike the others; the next batch may be of another kind.
        """
        if self._columns is None:
            spec = nested.spec(next(iter(rows.values())))
            # Its pages take no memory until they are written: a row may be far too large.
            self._columns = nested.map(lambda s: np.zeros((self._size, *s.shape), s.dtype), spec)
        elif len(rows) < self._size:
            for _, column in nested.items(self._columns):
                column.fill(0)
        for place, row in rows.items():
            if not _put(self._columns, row, place):
                self.forget()
                raise SpecError("row: expected structure, shapes and dtypes of the other rows")
        return self._columns

    def forget(self) -> None:
        """Forget the structure of the rows; the next batch sets it anew."""
        self._columns = None


def _put(columns: Nested, row: Nested, place: int) -> bool:
    """Copy a row to its place; False if it is unlike the columns."""
    if isinstance(columns, np.ndarray):
        if not isinstance(row, np.ndarray | np.generic):
            return False
        if row.shape != columns.shape[1:] or row.dtype != columns.dtype:
            return False
        columns[place] = row
        return True
    if isinstance(columns, dict):
        return (
            isinstance(row, dict)
            and len(row) == len(columns)
            and all(name in row and _put(columns[name], row[name], place) for name in columns)
        )
    return (
        isinstance(row, list | tuple)
        and len(row) == len(columns)
        and all(_put(column, leaf, place) for column, leaf in zip(columns, row, strict=True))
    )


def row_of(outputs: Nested, place: int) -> Nested:
    """Return one row of a batch's outputs, as views."""
    if isinstance(outputs, dict):  # written out: every tick passes here
        return {name: row_of(child, place) for name, child in outputs.items()}
    if isinstance(outputs, list | tuple):
        return nested.map(lambda leaf: leaf[place, ...], outputs)
    return outputs[place, ...]
