"""The content of a replay on disk: saved when a run is closed, restored by the trial's next run."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Protocol

from bray_core.trials.experiment import Experiment

logger = logging.getLogger(__name__)


class SavedBuffer(Protocol):
    """A buffer that writes its content to files."""

    def save(self, path: Path) -> None:
        """Write all segments."""
        ...

    def load(self, path: Path) -> int:
        """Take up what `save` wrote; return the number of segments."""
        ...


class ReplayContent:
    """The content of one replay in the trial's folder, a file for each worker of the replay.

    The files are the same with either runtime, so a trial goes on with the other one.

    Args:
        buffer: the replay.
        experiment: folders of the trial.
        name: name of the replay.
        is_local: whether the replay is one in this process, and so has one file.
    """

    def __init__(
        self, buffer: SavedBuffer, experiment: Experiment, name: str, *, is_local: bool
    ) -> None:
        self._buffer = buffer
        self._experiment = experiment
        folder = experiment.path / "buffers" / name
        self._path = folder / "0.buffer" if is_local else folder
        self._folder = folder

    def restore(self) -> None:
        """Load what the launch before saved, if it saved anything."""
        if self._path.exists():
            count = self._buffer.load(self._path)
            logger.info("buffer: %d segments are restored from %s", count, self._folder)

    def save(self) -> None:
        """Write the content in place of what the launch before saved."""
        if self._path.exists() and not self._experiment.is_settled:
            return  # a failed start, perhaps with less room, leaves the trial as it was
        self._folder.mkdir(parents=True, exist_ok=True)
        self._buffer.save(self._path)
