"""Data sets to learn from: recorded episodes, Minari data sets, Parquet files, Python's objects.

One is named by where it is: a folder of `Recorder`'s episodes, `minari:NAME`, a `.parquet` or
`.arrow` file or a folder of such, or `objects:module:function`. A row of a table has the columns
`observation` and `action`, for offline reinforcement learning `reward`, `next_observation` and
`terminated` too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bray.sources import demonstrations
from bray.sources.data_set_readers.checked_steps import StepCheck
from bray.sources.data_set_readers.minari_episodes import MinariEpisodes
from bray.sources.data_set_readers.python_episodes import PythonEpisodes
from bray.sources.data_set_readers.table_rows import TABLE_SUFFIXES, TableRows, tables
from bray_actor import read_episode
from bray_actor.environments.spec import located_code
from bray_buffer.mixture import Mixture
from bray_buffer.sources import SourceBuffer, SourceConfig
from bray_core import nested
from bray_core.action_vector import ActionVector
from bray_core.errors import ConfigError, SpecError
from bray_core.nested import ArraySpec, Nested
from bray_core.spaces import Spaces

logger = logging.getLogger(__name__)

TRANSITION = ("observation", "action", "reward", "next_observation", "discount")
"""Leaves of a sample of offline reinforcement learning. The discount is γ, or 0 where the episode
terminated; a truncated step keeps it."""
DEMONSTRATION = ("observation", "action", "return")
"""Leaves of a sample to imitate. The return is NaN where it is not known."""

_MINARI = "minari:"
_OBJECTS = "objects:"
_SHUFFLED = 16_384
"""Samples that are mixed at a time."""
_MOST_CACHED_BYTES = 1024**3
"""Samples kept in memory as they were read first, so that later epochs need not decode them."""


class DataSet(Protocol):
    """Steps of recorded episodes, in units that can be read in any order."""

    num_units: int

    def steps(self, unit: int, leaves: Sequence[str]) -> Nested | None:
        """Return those leaves `[n, …]` of a unit's steps for which all are known; None: no step."""
        ...

    def describe(self, unit: int) -> str:
        """Return where a unit comes from, for messages."""
        ...

    def mean_return(self) -> float:
        """Return the mean sum of rewards of the episodes; NaN where that is not known."""
        ...


class EpisodeFiles:
    """A folder of recorded episodes.

    Args:
        folder: the folder.
        actions: turns actions as the simulator took them into arrays.
        gamma: discount per step.

    Raises:
        ConfigError: there are none.
    """

    def __init__(self, folder: Path, actions: ActionVector, gamma: float) -> None:
        self._folder = folder
        self._paths = demonstrations.files(folder)
        self._actions = actions
        self._gamma = gamma
        self.num_units = len(self._paths)

    def steps(self, unit: int, leaves: Sequence[str]) -> Nested | None:
        """Return the steps of an episode; for transitions those whose outcome is known."""
        found = demonstrations.steps(read_episode(self._paths[unit]), self._gamma)
        if "next_observation" in leaves:
            found = [step for step in found if _has_outcome(step)]
        if not found:
            return None
        found.reverse()  # they come from the end
        rows = nested.stack([{name: step[name] for name in leaves} for step in found])
        rows["action"] = self._actions.flatten(rows["action"])
        return rows

    def describe(self, unit: int) -> str:
        """Return the path."""
        return str(self._paths[unit])

    def mean_return(self) -> float:
        """Return the mean sum of rewards of the episodes."""
        return demonstrations.mean_return(self._folder)


class CheckedDataSet:
    """A data set whose steps are looked at as they are read; one warning tells of clipped ones.

    Args:
        data: the data set.
        check: what looks at them.
    """

    def __init__(self, data: DataSet, check: StepCheck) -> None:
        self._data = data
        self._check = check
        self._is_told = False
        self.num_units = data.num_units

    def steps(self, unit: int, leaves: Sequence[str]) -> Nested | None:
        """Return the steps of a unit.

        Raises:
            SpecError: nothing can learn from them; names the unit, the step and the leaf.
        """
        try:
            found = self._data.steps(unit, leaves)
            if found is None:
                return None
            steps, words = self._check.clipped(self._check.checked(found))
        except SpecError as error:
            raise SpecError(f"{self.describe(unit)}: {error}") from error
        if words and not self._is_told:
            self._is_told = True
            logger.warning("%s: %s", self.describe(unit), words)
        return steps

    def describe(self, unit: int) -> str:
        """Return where a unit comes from."""
        return self._data.describe(unit)

    def mean_return(self) -> float:
        """Return the mean sum of rewards of the episodes."""
        return self._data.mean_return()


def _has_outcome(step: Mapping[str, Any]) -> bool:
    return step["next_observation"] is not None and not np.isnan(step["reward"])


def open_data_set(
    where: str, spaces: Spaces, *, gamma: float, leaves: Sequence[str] = TRANSITION
) -> DataSet:
    """Open a data set by where it is.

    Args:
        where: a folder of recorded episodes, `minari:NAME`, a table's file or folder, or
            `objects:module:function`, which is called.
        spaces: what was seen and done.
        gamma: discount per step.
        leaves: `TRANSITION` or `DEMONSTRATION`: what it is read for.

    Raises:
        ConfigError: there is none, or a table has no such columns.
        NotFoundError: the Minari data set is not on this machine.
        MissingExtraError: a package that reads it is not installed.
    """
    check = StepCheck(spaces, sample_spec(spaces, leaves))
    return CheckedDataSet(_opened(where, spaces, gamma, leaves), check)


def _opened(where: str, spaces: Spaces, gamma: float, leaves: Sequence[str]) -> DataSet:
    actions = ActionVector(spaces.action, spaces.origin)
    if where.startswith(_MINARI):
        return MinariEpisodes(where.removeprefix(_MINARI), spaces, gamma)
    if where.startswith(_OBJECTS):
        return PythonEpisodes(where.removeprefix(_OBJECTS), actions, gamma)
    path = Path(where)
    if path.suffix in TABLE_SUFFIXES or (path.is_dir() and tables(path)):
        return TableRows(path, actions, gamma, leaves)
    return EpisodeFiles(path, actions, gamma)


class DataSetSource:
    """A `bray_buffer.sources.Source` of a data set's steps; what was read first stays in memory.

    Args:
        data: the data set.
        leaves: leaves of a sample.
    """

    units_per_read = 1
    is_shuffled_by_order = False

    def __init__(self, data: DataSet, leaves: Sequence[str]) -> None:
        self._data = data
        self._leaves = leaves
        self._kept: dict[int, Nested | None] = {}
        self._left = _MOST_CACHED_BYTES
        self.num_units = data.num_units

    def read(self, units: Sequence[int]) -> Iterator[Nested | SpecError]:
        """Yield the steps of units, leaves `[n, …]`, or what is wrong with one's."""
        for unit in units:
            try:
                rows = self._kept[unit] if unit in self._kept else self._first_read(unit)
            except SpecError as error:  # names the unit
                rows = error
            if rows is not None:
                yield rows

    def _first_read(self, unit: int) -> Nested | None:
        rows = self._data.steps(unit, self._leaves)
        size = 0 if rows is None else sum(leaf.nbytes for _, leaf in nested.items(rows))
        if size <= self._left:
            self._left -= size
            self._kept[unit] = rows
        return rows

    def describe(self, unit: int) -> str:
        """Return where the unit comes from."""
        return self._data.describe(unit)


def buffer_of(
    where: str | Mapping[str, float],
    spaces: Spaces,
    *,
    leaves: Sequence[str],
    gamma: float,
    batch_size: int,
    seed: int,
) -> SourceBuffer | Mixture:
    """Return a buffer of the steps of data sets, shuffled, again and again.

    Args:
        where: a data set, see `open_data_set`; or several, each with its share of the batches.
        spaces: what was seen and done.
        leaves: `TRANSITION` or `DEMONSTRATION`.
        gamma: discount per step.
        batch_size: steps of a batch.
        seed: seed of the order.

    Raises:
        ConfigError: there is no such data set, or the shares are none.
    """
    if isinstance(where, str):
        data = open_data_set(where, spaces, gamma=gamma, leaves=leaves)
        config = SourceConfig(
            batch_size=batch_size, epochs=None, shuffle=True, shuffle_size=_SHUFFLED, seed=seed
        )
        return SourceBuffer(DataSetSource(data, leaves), config, layout=sample_spec(spaces, leaves))
    parts = {
        f"{number}": (
            buffer_of(
                one, spaces, leaves=leaves, gamma=gamma, batch_size=batch_size, seed=seed + number
            ),
            share,
        )
        for number, (one, share) in enumerate(where.items())
    }
    return Mixture(parts, seed)


def sample_spec(spaces: Spaces, leaves: Sequence[str]) -> Nested:
    """Return the `ArraySpec`s of one sample of those leaves."""
    number = ArraySpec(np.dtype(np.float32), ())
    actions = ActionVector(spaces.action, spaces.origin)
    seen = {"observation": spaces.recorded, "next_observation": spaces.recorded}
    every = {**seen, "action": actions.spec, "reward": number, "discount": number, "return": number}
    return {name: every[name] for name in leaves}


def located(where: str) -> str:
    """Return where a data set is as a worker finds it, whose working directory is another."""
    if where.startswith(_OBJECTS):
        return _OBJECTS + located_code(where.removeprefix(_OBJECTS))
    if where.startswith(_MINARI):
        return where
    try:
        return str(Path(where).resolve())
    except (OSError, ValueError) as error:  # too long, or with a zero byte
        raise ConfigError(
            f"demonstrations: expected the path of a data set, got {where[:200]!r}: {error}"
        ) from error


def all_located(where: str | Mapping[str, float]) -> str | dict[str, float]:
    """Return where one or several data sets are, as `located` does."""
    if isinstance(where, str):
        return located(where)
    return {located(one): share for one, share in where.items()}


def mean_return(where: Sequence[str], spaces: Spaces) -> float:
    """Return the mean sum of rewards of data sets' episodes; NaN where one does not say it."""
    means = [
        open_data_set(one, spaces, gamma=1.0, leaves=DEMONSTRATION).mean_return() for one in where
    ]
    return float(np.mean(means))


def check_shares(shares: Mapping[str, Any]) -> None:
    """Refuse shares of data sets that are no numbers above 0.

    Raises:
        ConfigError: names the data set.
    """
    for name, share in shares.items():
        is_number = isinstance(share, int | float) and not isinstance(share, bool)
        if not is_number or not 0 < share < float("inf"):
            raise ConfigError(f"mixture: {name}: expected a share above 0, got {share!r}")
