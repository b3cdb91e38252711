"""The content of a replay on disk: saved when a run is closed, restored by the trial's next run."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Protocol

from bray_core.errors import SpecError, WorkerLostError
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
        num_workers: number of its processes on Ray.
    """

    def __init__(
        self,
        buffer: SavedBuffer,
        experiment: Experiment,
        name: str,
        *,
        is_local: bool,
        num_workers: int = 1,
    ) -> None:
        self._buffer = buffer
        self._experiment = experiment
        folder = experiment.path / "buffers" / name
        self._path = folder / "0.buffer" if is_local else folder
        self._folder = folder
        self._num_files = 1 if is_local else num_workers

    def restore(self) -> None:
        """Load what the launch before saved, if it saved anything.

        Raises:
            SpecError: it is damaged, or of segments with other leaves or another number of steps.
        """
        if self._path.exists():
            for path in self._surplus():
                logger.warning("buffer: %s is lost: this run has no worker to restore it", path)
            try:
                count = self._buffer.load(self._path)
            except SpecError as error:
                raise SpecError(
                    f"{error}: go on with the settings that it was saved with, such as the same "
                    f"steps_per_collect, or delete {self._folder} to begin with an empty replay"
                ) from error
            logger.info("buffer: %d segments are restored from %s", count, self._folder)

    def _surplus(self) -> list[Path]:
        """Return the files of workers that only launches before this one had."""
        found = [path for path in self._folder.glob("*.buffer") if path.stem.isdecimal()]
        return [path for path in found if int(path.stem) >= self._num_files]

    def save(self) -> None:
        """Write the content in place of what the launch before saved.

        Where a worker is lost meanwhile, its file stays as it was.
        """
        if self._path.exists() and not self._experiment.is_settled:
            return  # a failed start, perhaps with less room, leaves the trial as it was
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            self._buffer.save(self._path)
        except WorkerLostError as error:  # the run has ended well but for this
            logger.warning("buffer: what %s was to hold is lost: %s", self._folder, error)
        for path in self._surplus():  # a later launch with more workers would restore it
            path.unlink()
