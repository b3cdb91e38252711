"""The curriculum of a run: where it begins, and how it follows the run's progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bray.callbacks import Progress
from bray.run import Run
from bray.sources.curriculum import Curriculum, CurriculumCallback, ResettableSource
from bray.training.loop_state import LoopState


class RunCurriculum:
    """Settings of a run's environments by its progress, or none.

    Args:
        run: the run, whose trial may have come some way before.
        setting: `source.curriculum`; None gives the environments nothing.

    Raises:
        ConfigError: the setting names no function, or the function returns no settings.
    """

    def __init__(self, run: Run, setting: str | Mapping[str, Any] | None) -> None:
        self._run = run
        self._curriculum = None if setting is None else Curriculum(setting)
        self.first: dict[str, Any] | None = None
        """Settings of the first episodes of this launch; None: there is no curriculum."""
        if self._curriculum is not None:
            experiment = run.experiment
            frames = LoopState.restore(experiment.path, experiment.checkpoints).frames
            self.first = self._curriculum.at(Progress(frames=frames, seconds=0.0, figures={}))

    def follow(self, source: ResettableSource) -> None:
        """Give a source's environments the settings that are due, as the run goes on."""
        if self._curriculum is not None and self.first is not None:
            self._run.listen(CurriculumCallback(self._curriculum, source, self.first))
