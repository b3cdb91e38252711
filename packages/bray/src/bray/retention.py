"""Retention: how much of a trial stays on disk, while it runs and after."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bray_core.errors import BrayError
from bray_core.settings.ranges import PositiveInt, check_fields

if TYPE_CHECKING:
    from bray_model import ModelConfig
    from bray_model.versions.version_store import VersionStore

logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class RetentionPolicy:
    """How much of a trial stays on disk. Pinned versions and frozen players always stay.

    Each number trades disk for history. A checkpoint holds the optimizer's state too: about three
    times the size of a version.
    """

    checkpoints: PositiveInt = 3
    """Number of the trainer's newest checkpoints that stay; one is enough to go on."""
    versions: PositiveInt = 10
    """Number of each model's newest versions that stay."""
    episodes: PositiveInt = 1000
    """Number of the newest recorded episodes that stay."""
    best: bool = True
    """Pin the version with the best evaluation, so that it stays and is exported."""

    def __post_init__(self) -> None:
        check_fields(self)

    def model_config(self, config: ModelConfig | None) -> ModelConfig:
        """Return a model's settings with this number of versions."""
        from bray_model import ModelConfig

        config = config or ModelConfig()
        return replace(config, retention=replace(config.retention, keep_last=self.versions))

    def trainer_factory(self, factory: Callable[[], T]) -> Callable[[], T]:
        """Return a factory whose trainers keep this number of checkpoints."""
        return _TrainerFactory(factory, self.checkpoints)

    def apply(self, trial: Path) -> None:
        """Prune a trial that its run has just left; a failure is logged."""
        try:
            prune(trial, self)
        except (OSError, BrayError) as error:  # must not hide what ended the run
            logger.warning("retention: %s: %s", trial, error)


@dataclass(frozen=True)
class _TrainerFactory(Generic[T]):
    """A class, not a closure: it is pickled for a trainer's process."""

    factory: Callable[[], T]
    checkpoints: int

    def __call__(self) -> T:
        made: Any = self.factory()
        if hasattr(made, "config"):  # a trainer of the user's own may have none
            made.config = replace(made.config, keep_checkpoints=self.checkpoints)
        trainer: T = made
        return trainer


def surplus(trial: Path, keep: RetentionPolicy) -> list[Path]:
    """Return the files and folders of a trial beyond what is to be kept."""
    from bray_trainer.checkpoints import checkpoint

    # An episode's name begins with its time: sorted, the oldest come first.
    episodes = sorted((trial / "episodes").glob("*.episode"))
    return [
        *checkpoint.surplus(trial / "checkpoints", keep.checkpoints),
        *(file for store in _version_stores(trial, keep) for file in store.surplus()),
        *episodes[: -keep.episodes],
    ]


def prune(trial: Path, keep: RetentionPolicy) -> None:
    """Delete what `surplus` names; the trial must not run.

    Raises:
        OSError: a file cannot be deleted.
    """
    paths = surplus(trial, keep)
    # A store prunes its own versions, because its index must forget them too.
    for store in _version_stores(trial, keep):
        store.prune()
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _version_stores(trial: Path, keep: RetentionPolicy) -> list[VersionStore]:
    from bray_model.versions.retention import Retention
    from bray_model.versions.version_store import VersionStore

    rules = Retention(keep_last=keep.versions)
    return [VersionStore(path, rules) for path in sorted(trial.glob("models/*/versions"))]
