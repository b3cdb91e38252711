"""Frozen versions of one model, and what their games have shown: kept in the trial's folder."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from bray.games import league_pictures
from bray.games.frozen import freeze, frozen
from bray_algo.league.elo import EloFit, fit_elo
from bray_algo.league.payoff import PayoffTable
from bray_core.errors import ConfigError, FormatError
from bray_core.files.saved_file import check_format, write_atomic

logger = logging.getLogger(__name__)

_FORMAT = 1
"""Format number of the pool's file; format 0 is the same without the number."""


class VersionPool:
    """Versions by name, oldest first. All are clones of one model and answered by its workers.

    Args:
        model: a `Model` or `RemoteModel` with a directory.
        path: the file of names and results; one that exists is taken up.

    Raises:
        ConfigError: the file is no pool's.
        FormatError: a newer version of bray wrote it.
        VersionNotFoundError: it names a version that the model's directory has no more.

    With a model of a run:

        pool = VersionPool(model, run.experiment.path / "pool")
        name = pool.freeze()  # what the model answers with now, for ever
        pool.payoff.record(name, other, 1.0)
        pool.save()
    """

    def __init__(self, model: Any, path: Path) -> None:
        self.path = path
        self.payoff = PayoffTable()
        self.notes: dict[str, Any] = {}
        """What the pool's user wants to find again, as JSON takes it."""
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
            self._clones[name] = frozen(self._model, name, self._versions[name])
        return self._clones[name]

    @property
    def names(self) -> tuple[str, ...]:
        """Of all versions, oldest first."""
        return tuple(self._versions)

    def freeze(self) -> str:
        """Add the model's current version, write the pool, and return the version's name.

        Raises:
            ValueError: this version is in the pool already.
        """
        name = f"v{self._model.version}"
        self.payoff.add(name)
        self._versions[name] = freeze(self._model, name)
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

    def draw(self, folder: Path) -> list[Path]:
        """Draw `win_rates.png` and `ratings.png` into a folder; return their paths."""
        pictures = {
            "win_rates.png": league_pictures.heat_map(self.payoff.matrix()),
            "ratings.png": league_pictures.curve(self.elo().rating, *self.elo().interval()),
        }
        for name, picture in pictures.items():
            write_atomic(folder / name, league_pictures.png(picture))
        return [folder / name for name in pictures]

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
