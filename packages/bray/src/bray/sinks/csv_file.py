"""The sink `csv`: one table of a trial's figures, for spreadsheets and pandas."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from bray_core.errors import ConfigError
from bray_core.metrics.axes import Axes
from bray_core.metrics.run_sinks import SinkEnding, SinkRun
from bray_core.settings.ranges import NonNegativeFloat, check_fields

_AXES = [one.name for one in fields(Axes)]


@dataclass(frozen=True, kw_only=True, slots=True)
class CsvConfig:
    """Settings of the sink `csv`."""

    file: str = "figures.csv"
    """Name of the file, in the trial's folder."""
    every_s: NonNegativeFloat = 1.0
    """Least number of seconds between two rows."""

    def __post_init__(self) -> None:
        check_fields(self)
        if Path(self.file).name != self.file or not self.file.endswith(".csv"):
            raise ConfigError(
                f"file: expected a name that ends in .csv, without a folder, got {self.file!r}"
            )


class CsvSink:
    """Appends a row a second; a metric that comes later adds a column, and the file is rewritten.

    A launch that resumes the trial goes on in the same file. An empty cell means that the metric
    did not change. The last row of a launch that finished has the columns `result/…`.
    """

    Config = CsvConfig

    def __init__(self, run: SinkRun, config: CsvConfig) -> None:
        self._path = run.trial / config.file
        self._axes = Axes()
        self._columns = [*_AXES]
        if self._path.exists():
            with self._path.open(newline="") as file:
                self._columns = next(csv.reader(file), self._columns)
            _end_last_row(self._path, len(self._columns))
        else:
            self._rewrite(self._columns)
        self._file = self._path.open("a", newline="", buffering=1)

    def write(self, axes: Axes, values: Mapping[str, float]) -> None:
        """Append one row."""
        self._axes = axes
        if new := [name for name in values if name not in self._columns]:
            self._file.close()
            self._rewrite([*self._columns, *sorted(new)])
            self._file = self._path.open("a", newline="", buffering=1)
        row = {**asdict(axes), **values}
        csv.writer(self._file).writerow([row.get(name, "") for name in self._columns])

    def close(self, ending: SinkEnding) -> None:
        """Append the numbers of the result, and close the file."""
        if numbers := ending.numbers():
            self.write(self._axes, numbers)
        self._file.close()

    def _rewrite(self, columns: list[str]) -> None:
        """Write the file anew with these columns, of which the old ones are the first."""
        part = self._path.with_name(f".{self._path.name}.part")
        with part.open("w", newline="") as new:
            writer = csv.writer(new)
            writer.writerow(columns)
            if self._path.exists():
                with self._path.open(newline="") as old:
                    rows = csv.reader(old)
                    next(rows, None)
                    for row in rows:
                        writer.writerow(row + [""] * (len(columns) - len(row)))
        os.replace(part, self._path)
        self._columns = columns


def _end_last_row(path: Path, num_cells: int) -> None:
    """End a last row without its line break, which the next row would go on in.

    One with fewer cells is removed: a full disk or a crash has cut it short.
    """
    content = path.read_bytes()
    row = content[content.rfind(b"\n") + 1 :]
    if not row:
        return
    if len(next(csv.reader([row.decode(errors="replace")]))) < num_cells:
        os.truncate(path, len(content) - len(row))
    else:
        with path.open("ab") as file:
            file.write(b"\n")
