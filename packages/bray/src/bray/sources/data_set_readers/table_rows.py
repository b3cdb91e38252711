"""Rows of tables as a data set to learn from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bray.sources import demonstrations
from bray_buffer.sources import ParquetSource
from bray_core import nested
from bray_core.action_vector import ActionVector
from bray_core.errors import SpecError
from bray_core.nested import Nested

TABLE_SUFFIXES = (".parquet", ".pq", ".arrow", ".feather", ".ipc")
"""Endings of the files that are tables."""


class TableRows:
    """Rows of Parquet and Arrow files, a step each.

    Args:
        where: a file, or a folder of files.
        actions: turns actions as the environment takes them into arrays.
        gamma: discount per step.
        leaves: leaves that will be asked for.

    Raises:
        ConfigError: a column is missing.
    """

    def __init__(
        self, where: Path, actions: ActionVector, gamma: float, leaves: Sequence[str]
    ) -> None:
        columns = [_COLUMNS.get(name, name) for name in leaves if name != "return"]
        self._rows = ParquetSource(tables(where), columns)
        self._actions = actions
        self._gamma = gamma
        self.num_units = self._rows.num_units

    def steps(self, unit: int, leaves: Sequence[str]) -> Nested | None:
        """Return the steps of a row group; returns are not known."""
        parts = list(self._rows.read([unit]))
        for part in parts:
            if isinstance(part, SpecError):
                raise part
        if not parts:
            return None
        rows = nested.map(demonstrations.narrow, nested.concat(parts))
        rows["action"] = self._actions.flatten(rows["action"])
        if "reward" in rows:
            rows["reward"] = rows["reward"].astype(np.float32)
            ended = rows["terminated"].astype(bool)
            rows["discount"] = np.where(ended, 0.0, self._gamma).astype(np.float32)
        rows["return"] = np.full(len(rows["action"]), np.nan, np.float32)
        return {name: rows[name] for name in leaves}

    def describe(self, unit: int) -> str:
        """Return the file and the row group."""
        return self._rows.describe(unit)

    def mean_return(self) -> float:
        """Return NaN: rows do not say where episodes begin."""
        return float("nan")


_COLUMNS = {"discount": "terminated"}
"""Leaf → the column that it is made of, where it has another name."""


def tables(where: Path) -> list[Path]:
    """Return the files of tables at a place: itself, or those of a folder."""
    if not where.is_dir():
        return [where]
    return sorted(path for path in where.iterdir() if path.suffix in TABLE_SUFFIXES)
