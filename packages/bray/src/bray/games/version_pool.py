"""Frozen versions of one model, and what their games have shown: kept in the trial's folder."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from bray_algo.league.elo import EloFit, fit_elo
from bray_algo.league.payoff import PayoffTable
from bray_core.errors import ConfigError, FormatError, NotFoundError
from bray_core.files.saved_file import check_format, write_atomic

logger = logging.getLogger(__name__)

_FORMAT = 1
"""Format number of the pool's file; format 0 is the same without the number."""


def freeze_version(model: Any, name: str) -> int:
    """Keep what a model answers with now under a name for ever, and return its version.

    It stays on disk and across restarts, in either runtime.

    Args:
        model: A `Model` or `RemoteModel` with a directory.
        name: Name that is new among the model's clones; `frozen_version` finds it.

    Raises:
        AlreadyExistsError: the model has a clone of that name.
        CheckpointError: the version cannot be written.
    """
    model.checkpoint()
    version = int(model.version)
    model.pin(version)  # for those who open it after a restart
    model.clone(version, name)
    return version


def frozen_version(model: Any, name: str, version: int) -> Any:
    """Return the model of a frozen version.

    Raises:
        VersionNotFoundError: it is not in the model's directory any more.
    """
    try:
        return model.get_clone(name)
    except NotFoundError:  # on Ray, after a restart: the file is there, its name is not
        return model.clone(version, name)


class VersionPool:
    """Versions by name, oldest first. All are clones of one model and answered by its workers.

    Args:
        model: A `Model` or `RemoteModel` with a directory.
        path: Path of the file of names and results; one that exists is taken up. `bray view` shows
            a trial's `league.json`: win rates, ratings with their intervals.

    Raises:
        ConfigError: the file is no pool's.
        FormatError: a newer version of bray wrote it.
        VersionNotFoundError: it names a version that the model's directory has no more.

    Use it with a model of a run:

        pool = VersionPool(model, run.experiment.path / "league.json")
        name = pool.freeze()  # what the model answers with now, for ever
        pool.payoff.record(name, other, 1.0)
        pool.save()
    """

    def __init__(self, model: Any, path: Path) -> None:
        self.path = path
        self.payoff = PayoffTable()
        self.notes: dict[str, Any] = {}
        """Notes that the pool's user wants to find again, as JSON takes them."""
        self._model = model
        self._versions: dict[str, int] = {}
        self._clones: dict[str, Any] = {}
        if path.exists():
            self._restore()

    def __len__(self) -> int:
        return len(self._versions)

    def __getitem__(self, name: str) -> Any:
        """Return a version's model."""
        if name not in self._clones:
            self._clones[name] = frozen_version(self._model, name, self._versions[name])
        return self._clones[name]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all versions, oldest first."""
        return tuple(self._versions)

    def freeze(self) -> str:
        """Add the model's current version, write the pool, and return the version's name.

        Raises:
            ValueError: this version is in the pool already.
        """
        name = f"v{self._model.version}"
        self.payoff.add(name)
        self._versions[name] = freeze_version(self._model, name)
        self.save()
        return name

    def elo(self) -> EloFit:
        """Return the ratings that all games together give, in the order of `names`."""
        return fit_elo(self.payoff.wins + self.payoff.draws / 2, self.payoff.games)

    def save(self) -> None:
        """Write names, results and notes: the whole file or nothing."""
        state = {
            "format": _FORMAT,
            "versions": self._versions,
            "payoff": self.payoff.state(),
            "notes": self.notes,
        }
        write_atomic(self.path, json.dumps(state).encode())

    def _restore(self) -> None:
        try:
            state = dict(json.loads(self.path.read_bytes()))
            check_format(self.path, state, _FORMAT)
            self.payoff = PayoffTable.from_state(state["payoff"])
            self._versions = {str(name): int(v) for name, v in state["versions"].items()}
            self.notes = dict(state["notes"])
            if self.payoff.players != self.names:
                raise ValueError("payoff: its players are not the versions")
        except FormatError:
            raise
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise ConfigError(
                f"path: expected a pool's file at {self.path}, got {error}: move it away"
            ) from error
        logger.info("pool: %d versions are restored from %s", len(self), self.path)
