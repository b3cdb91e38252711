"""Retention: how much of a trial stays on disk, while it runs and after."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from bray.checks import positive
from bray_core.errors import BrayError, CodecError, FormatError
from bray_core.files.json_file import read_object
from bray_core.files.saved_file import check_format, write_atomic

if TYPE_CHECKING:
    from bray.run import Run
    from bray_model import ModelConfig

logger = logging.getLogger(__name__)
T = TypeVar("T")

BEST = "best.json"
_FORMAT = 1
"""Format number of `best.json`; format 0 is the same without the number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Keep:
    """What stays of a trial; models' pinned versions and frozen players stay in any case."""

    checkpoints: int = 3
    """The newest checkpoints of the trainer."""
    versions: int = 10
    """The newest versions of each model."""
    episodes: int = 1000
    """The newest recorded episodes."""
    best: bool = True
    """Whether the version with the best evaluation is pinned."""

    def __post_init__(self) -> None:
        positive(checkpoints=self.checkpoints, versions=self.versions, episodes=self.episodes)

    def of_model(self, config: ModelConfig | None) -> ModelConfig:
        """Return the settings of a model that keeps so many versions."""
        from bray_model import ModelConfig

        config = config or ModelConfig()
        return replace(config, retention=replace(config.retention, keep_last=self.versions))

    def of_trainer(self, factory: Callable[[], T]) -> Callable[[], T]:
        """Return a factory of trainers that keep so many checkpoints."""
        return _Keeping(factory, self.checkpoints)

    def apply(self, trial: Path) -> None:
        """Prune a trial that its run has just left; what fails is logged."""
        try:
            prune(trial, self)
        except (OSError, BrayError) as error:  # must not hide what ended the run
            logger.warning("retention: %s: %s", trial, error)


@dataclass(frozen=True)
class _Keeping(Generic[T]):
    """A factory that travels to a trainer's process."""

    factory: Callable[[], T]
    checkpoints: int

    def __call__(self) -> T:
        made: Any = self.factory()
        if hasattr(made, "config"):  # a trainer of the user's own may have none
            made.config = replace(made.config, keep_checkpoints=self.checkpoints)
        trainer: T = made
        return trainer


@dataclass(frozen=True, kw_only=True, slots=True)
class Best:
    """The version with the best evaluation of a trial."""

    version: int
    evaluation_return: float
    """Mean."""
    frames: int
    """Of its launch, before the evaluation."""

    @classmethod
    def read(cls, trial: Path) -> Best | None:
        """Read it; None where nothing was evaluated, or it is not kept.

        Raises:
            CodecError: `best.json` cannot be read, or a newer version of bray wrote it.
        """
        path = trial / BEST
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

    def offer(self, trial: Path, model: Any) -> bool:
        """Pin this version in place of the best one so far, if it is better; return whether.

        Args:
            trial: the folder.
            model: has the version on disk.
        """
        before = Best.read(trial)
        if before is not None and before.evaluation_return >= self.evaluation_return:
            return False
        model.pin(self.version)
        content = {"format": _FORMAT, **asdict(self)}
        write_atomic(trial / BEST, json.dumps(content).encode())
        if before is not None and before.version != self.version:
            model.pin(before.version, pinned=False)
        return True


def offer_best(run: Run, model: Any, version: int, evaluation_return: float, frames: int) -> None:
    """Pin a version if no evaluation of the trial was better, unless the run keeps no best one.

    Args:
        run: of the evaluation.
        model: of `Run.model`.
        version: that was evaluated; it is on disk.
        evaluation_return: mean.
        frames: of the launch, before the evaluation.
    """
    if run.keeps is None or run.keeps.best:
        best = Best(version=version, evaluation_return=evaluation_return, frames=frames)
        best.offer(run.experiment.path, model)


def surplus(trial: Path, keep: Keep) -> list[Path]:
    """Return the files and folders of a trial beyond what is to be kept."""
    from bray_trainer.checkpoints import checkpoint

    episodes = sorted((trial / "episodes").glob("*.episode"))
    return [
        *checkpoint.surplus(trial / "checkpoints", keep.checkpoints),
        *(file for store in _stores(trial, keep) for file in store.surplus()),
        *episodes[: -keep.episodes],
    ]


def prune(trial: Path, keep: Keep) -> None:
    """Delete what is beyond; the trial must not run.

    Raises:
        OSError: something cannot be deleted.
    """
    paths = surplus(trial, keep)
    for store in _stores(trial, keep):
        store.prune()
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _stores(trial: Path, keep: Keep) -> list[Any]:
    from bray_model.versions.retention import Retention
    from bray_model.versions.version_store import VersionStore

    rules = Retention(keep_last=keep.versions)
    return [VersionStore(path, rules) for path in sorted(trial.glob("models/*/versions"))]
