"""A trial that is refused before anything was trained leaves no folder behind."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bray_core.errors import ConfigError
from bray_core.files.trial_folders import EPISODES

_RESULTS = ("checkpoints", "models", "buffers", EPISODES)


@contextmanager
def removed_if_refused(trial: Path) -> Iterator[None]:
    """Remove a new trial's folder where a ConfigError ends the block before there are results.

    Such an error names an environment that there is not, or actions that an algorithm cannot
    choose. A folder that was there before stays, and one with a checkpoint or a version.

    Args:
        trial: folder of the trial.
    """
    is_new = not trial.exists()
    try:
        yield
    except ConfigError:
        if is_new and not any(any((trial / name).glob("*")) for name in _RESULTS):
            shutil.rmtree(trial, ignore_errors=True)
        raise
