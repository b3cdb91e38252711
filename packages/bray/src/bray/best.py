"""The version with the best evaluation of a trial: it stays pinned, and `best.json` names it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from bray.run import Run
from bray_core.errors import CodecError, FormatError, VersionNotFoundError
from bray_core.files.json_file import read_object
from bray_core.files.saved_file import check_format, write_atomic
from bray_model.versions.retention import Retention
from bray_model.versions.version_store import VersionStore

logger = logging.getLogger(__name__)

_FILE = "best.json"
_FORMAT = 1
"""Format number of `best.json`; format 0 is the same without the number."""


class PinsVersions(Protocol):
    """A model that can pin its versions: `Model` and `RemoteModel`."""

    def pin(self, version: int, *, pinned: bool = True) -> None:
        """Keep a version on disk whatever the retention says, or no longer."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class BestVersion:
    """The version with the best evaluation of a trial."""

    version: int
    evaluation_return: float
    """Mean return of the evaluation's episodes."""
    frames: int
    """Frames that its launch had played before the evaluation."""

    @classmethod
    def read(cls, trial: Path) -> BestVersion | None:
        """Read it; None where nothing was evaluated, or the trial keeps no best version.

        Raises:
            CodecError: `best.json` cannot be read, or a newer version of bray wrote it.
        """
        path = trial / _FILE
        try:
            content = read_object(path)
            if content is None:
                return None
            check_format(path, content, _FORMAT)
            content.pop("format", None)
            return msgspec.convert(content, cls)
        except FormatError:
            raise
        except ValueError as error:
            raise CodecError(f"{path}: not a best version: {error}: delete it") from error

    def offer(self, trial: Path, model: PinsVersions) -> bool:
        """Pin this version in place of the best one so far, if it is better; return whether.

        Args:
            trial: folder of the trial.
            model: has this version on disk; a best one that has been deleted there counts no more.
        """
        before = BestVersion.read(trial)
        if before is not None and not _is_pinned(model, before.version):
            before = None
        if before is not None and before.evaluation_return >= self.evaluation_return:
            return False
        model.pin(self.version)
        # A crash in between leaves one pin too many, never a best version that is gone.
        content = {"format": _FORMAT, **asdict(self)}
        write_atomic(trial / _FILE, json.dumps(content).encode())
        if before is None or before.version == self.version:
            return True
        if not _is_frozen(trial, before.version):
            model.pin(before.version, pinned=False)
        return True


def _is_frozen(trial: Path, version: int) -> bool:
    """Return whether a league plays with a version, and lets it go by itself."""
    frozen = (read_object(trial / "league.json") or {}).get("versions")
    return isinstance(frozen, dict) and version in frozen.values()


def _is_pinned(model: PinsVersions, version: int) -> bool:
    """Pin a version again; return whether the model still has it."""
    try:
        model.pin(version)
    except VersionNotFoundError:
        logger.warning(
            "best version %d: deleted, as the models are; a newer one takes its place", version
        )
        return False
    return True


def pin_newest(model: Any) -> tuple[int, bool]:
    """Write a model's current version to disk, and pin it.

    Args:
        model: made by `Run.model`, so that it has a folder; on Ray another process may publish to
            it, and drop versions, meanwhile.

    Returns:
        The version, and whether it was pinned before.
    """
    while True:
        path = model.checkpoint()
        assert path is not None, "a model of a run has a folder"
        version = int(path.stem)
        was_pinned = version in VersionStore(path.parent, Retention()).pinned()
        try:
            model.pin(version)
        except VersionNotFoundError:
            if int(model.version) == version:
                raise
        else:
            return version, was_pinned


@contextmanager
def kept_version(trial: Path, model: Any) -> Iterator[int]:
    """Write a model's current version, and give its number to a block that evaluates it.

    On Ray the trainer writes newer versions meanwhile. This one stays on disk for the block, and
    after it where it is the best one, or was pinned before.

    Args:
        trial: folder of the trial.
        model: made by `Run.model`.
    """
    version, was_pinned = pin_newest(model)
    try:
        yield version
    finally:
        best = BestVersion.read(trial)
        if not was_pinned and (best is None or best.version != version):
            model.pin(version, pinned=False)


def offer_best(
    run: Run, model: PinsVersions, version: int, evaluation_return: float, frames: int
) -> None:
    """Pin a version if no evaluation of the trial was better, unless the run keeps no best one.

    Args:
        run: made the model.
        model: has the version on disk.
        version: number of the version that was evaluated.
        evaluation_return: mean return of the evaluation's episodes.
        frames: frames that the launch had played before the evaluation.
    """
    if run.retention is None or run.retention.best:
        best = BestVersion(version=version, evaluation_return=evaluation_return, frames=frames)
        best.offer(run.experiment.path, model)
