"""Rows that several sessions sent, side by side in one batch whose size never changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from bray_core import nested
from bray_core.errors import SpecError
from bray_core.nested import Nested


class RowBlock:
    """Arrays `[size, ...]` that hold each row at a place of its own; other places hold zeros.

    Args:
        size: number of places.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._like: Nested = None
        self._columns: dict[str, npt.NDArray[Any]] = {}

    def fill(self, rows: Mapping[int, Nested]) -> Nested:
        """Return the batch that holds these rows at their places; it is overwritten by the next.

        Args:
            rows: place → tree of arrays, all of the same structure, shapes and dtypes.

        Raises:
            SpecError: one is unlike the others; the next batch may be of another kind.
        """
        if not self._columns:
            self._begin(next(iter(rows.values())))
        columns = self._columns
        if len(rows) < self._size:
            for column in columns.values():
                column.fill(0)
        for place, row in rows.items():
            count = 0
            for path, leaf in nested.items(row):
                column = columns.get(path)
                if column is None or not _fits(leaf, column):
                    raise self._unlike()
                column[place] = leaf
                count += 1
            if count < len(columns):
                raise self._unlike()
        return nested.unflatten(self._like, columns.values())

    def _begin(self, row: Nested) -> None:
        self._columns = {
            path: np.zeros((self._size, *spec.shape), spec.dtype)
            for path, spec in nested.items(nested.spec(row))
        }
        self._like = row

    def _unlike(self) -> SpecError:
        """Return what is wrong with a row, and let the next batch decide anew what is right."""
        self.forget()
        return SpecError("row: expected the structure, shapes and dtypes of the other rows")

    def forget(self) -> None:
        """Take the kind of the next batch's rows as right."""
        self._columns = {}


def _fits(leaf: Any, column: npt.NDArray[Any]) -> bool:
    shape: object = getattr(leaf, "shape", None)
    return shape == column.shape[1:] and leaf.dtype == column.dtype


def row_of(outputs: Nested, place: int) -> Nested:
    """Return one row of a batch's outputs, as views."""
    return nested.map(lambda leaf: leaf[place, ...], outputs)
