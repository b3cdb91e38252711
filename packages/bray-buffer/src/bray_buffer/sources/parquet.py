"""Samples in the rows of Parquet and Arrow files."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bray_buffer.sources.source import Rows
from bray_core import nested
from bray_core.errors import ConfigError, MissingExtraError, NotFoundError, SpecError

_PARQUET = (".parquet", ".pq")
_ARROW = (".arrow", ".feather", ".ipc")


class ParquetSource:
    """Rows of files, a row group (of Arrow files a record batch) at a time.

    A column becomes a leaf: numbers and bools `()`, lists of one length `(n,)` and such lists of
    lists `(m, n)`, structs dicts. Memory holds one row group a worker and read ahead, so write
    groups of some MiB.

    Args:
        paths: Paths of files, `.parquet` or `.arrow`, all of the same columns.
        columns: Names of the columns; all by default.

    Raises:
        ConfigError: there is no file, a file is of another kind, or a column is missing or of
            another type.
        NotFoundError: a file is missing.
        SpecError: a file is broken.
        MissingExtraError: pyarrow is not installed.
    """

    units_per_read = 1
    is_shuffled_by_order = False

    def __init__(
        self, paths: str | Path | Sequence[str | Path], columns: Sequence[str] | None = None
    ) -> None:
        given = [paths] if isinstance(paths, str | Path) else paths
        self._paths = [Path(path) for path in given]
        if not self._paths:
            raise ConfigError("paths: expected at least one file, got none")
        self._columns = None if columns is None else list(columns)
        self._starts: list[int] = []
        """Number of each file's first unit."""
        self._rows: list[list[int]] = []
        """Number of the first row of each unit, by file."""
        self.num_units = 0
        for path in self._paths:
            self._add(path)

    def _add(self, path: Path) -> None:
        with _File(path) as file:
            if self._columns is None:
                self._columns = list(file.schema.names)
            for name in self._columns:
                if name not in file.schema.names:
                    raise ConfigError(
                        f"columns: {path} has no {name!r}, but {', '.join(file.schema.names)}"
                    )
                _check_type(f"{path}: column {name!r}", file.schema.field(name).type)
            self._starts.append(self.num_units)
            self._rows.append(np.cumsum([0, *file.group_rows]).tolist()[:-1])
            self.num_units += len(file.group_rows)

    def _locate(self, unit: int) -> tuple[int, int]:
        """Return the number of a unit's file, and that of its row group."""
        at = bisect.bisect_right(self._starts, unit) - 1
        return at, unit - self._starts[at]

    def describe(self, unit: int) -> str:
        """Return the file and the row group."""
        at, group = self._locate(unit)
        return f"{self._paths[at]} row group {group}"

    def read(self, units: Sequence[int]) -> Iterator[Rows | SpecError]:
        """Yield the rows of row groups; one with a null or a list of another length is broken."""
        for unit in units:
            yield from self._read(unit)

    def _read(self, unit: int) -> Iterator[Rows | SpecError]:
        at, group = self._locate(unit)
        path, first = self._paths[at], self._rows[at][group]
        with _File(path) as file:
            table = file.read(group, self._columns or [])
        tree: dict[str, Any] = {}
        bad: dict[int, str] = {}
        for name in table.column_names:
            column = table.column(name).combine_chunks()
            tree[name], missing = _to_arrays(column)
            bad.update(dict.fromkeys(np.flatnonzero(missing).tolist(), name))
        start = 0
        for row in sorted(bad):
            if row > start:
                yield _rows(tree, start, row)
            yield SpecError(
                f"{path}: row {first + row}: column {bad[row]!r} has a null, or a list of another "
                "length than the row group's first"
            )
            start = row + 1
        if start < table.num_rows:
            yield _rows(tree, start, table.num_rows)


def _rows(tree: Rows, start: int, stop: int) -> Rows:
    return nested.map(lambda leaf: leaf[start:stop], tree)


class _File:
    """An open Parquet or Arrow file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._arrow = _import_pyarrow()
        if path.suffix not in _PARQUET + _ARROW:
            raise ConfigError(
                f"paths: expected files named {', '.join(_PARQUET + _ARROW)}, got {path}"
            )

    def __enter__(self) -> _File:
        try:
            self._source = self._arrow.OSFile(str(self._path), "rb")
        except FileNotFoundError:
            raise NotFoundError(f"paths: no file {self._path}") from None
        try:
            self._open()
        except BaseException as error:
            self._source.close()
            if isinstance(error, self._arrow.ArrowException | OSError):
                raise SpecError(f"{self._path}: cannot be read: {error}") from error
            raise
        return self

    def _open(self) -> None:
        if self._path.suffix in _PARQUET:
            import pyarrow.parquet

            self._file = pyarrow.parquet.ParquetFile(self._source)
            meta = self._file.metadata
            self.schema = self._file.schema_arrow
            self.group_rows = [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]
        else:
            self._file = self._arrow.ipc.open_file(self._source)
            self.schema = self._file.schema
            batches = range(self._file.num_record_batches)
            self.group_rows = [self._file.get_batch(i).num_rows for i in batches]

    def read(self, group: int, columns: list[str]) -> Any:
        """Return a row group as a table."""
        try:
            if self._path.suffix in _PARQUET:
                return self._file.read_row_group(group, columns=columns, use_threads=False)
            return self._arrow.Table.from_batches([self._file.get_batch(group)]).select(columns)
        except (self._arrow.ArrowException, OSError) as error:
            raise SpecError(f"cannot be read: {error}") from error

    def __exit__(self, *_: object) -> None:
        self._source.close()


def _import_pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ModuleNotFoundError as error:
        raise MissingExtraError("ParquetSource", "bray-buffer", "parquet") from error
    return pyarrow


def _check_type(where: str, kind: Any) -> None:
    types = _import_pyarrow().types
    if _is_list(kind) or types.is_fixed_size_list(kind):
        _check_type(where, kind.value_type)
    elif types.is_struct(kind):
        for field in kind:
            _check_type(f"{where}: {field.name!r}", field.type)
    elif not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise ConfigError(
            f"{where}: expected numbers or lists of them, got {kind}: leave it out of `columns`"
        )


def _is_list(kind: Any) -> bool:
    types = _import_pyarrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind))


def _to_arrays(column: Any) -> tuple[Rows, npt.NDArray[np.bool_]]:
    """Return a column's leaves `[n, …]`, and which of its rows have a null somewhere."""
    types = _import_pyarrow().types
    missing = column.is_null().to_numpy(zero_copy_only=False)
    if types.is_struct(column.type):
        tree = {}
        for field in column.type:
            tree[field.name], inner = _to_arrays(column.field(field.name))
            missing = missing | inner
        return tree, missing
    if _is_list(column.type):
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)  # NaN for a null
        size = int(lengths[~missing][0]) if not missing.all() else 0
        missing = lengths != size
        kept = column.filter(_import_pyarrow().array(~missing))
        values, inner = _to_arrays(kept.flatten())
        missing[~missing] = inner.reshape(len(kept), size).any(axis=1)
        at = np.flatnonzero(lengths == size)

        def spread(leaf: npt.NDArray[Any]) -> npt.NDArray[Any]:
            rows = np.zeros((len(column), size, *leaf.shape[1:]), leaf.dtype)
            rows[at] = leaf.reshape(len(at), size, *leaf.shape[1:])
            return rows

        return nested.map(spread, values), missing
    if types.is_fixed_size_list(column.type):
        size = column.type.list_size
        values, inner = _to_arrays(column.values.slice(column.offset * size, len(column) * size))
        missing = missing | inner.reshape(len(column), size).any(axis=1)
        return nested.map(lambda x: x.reshape(len(column), size, *x.shape[1:]), values), missing
    if column.null_count:  # numpy has none: what lies below is taken, and nobody reads it
        parts = [None, column.buffers()[1]]
        column = type(column).from_buffers(column.type, len(column), parts, offset=column.offset)
    return column.to_numpy(zero_copy_only=False), missing
