"""The notes of trials as the page shows and saves them."""

from __future__ import annotations

from pathlib import Path

from bray.viewer.trial_file import opener_of
from bray_core.errors import CodecError, ConfigError
from bray_core.trials.trial_notes import TrialNotes


def notes_of(trial: Path) -> TrialNotes:
    """Return a trial's notes, empty where they cannot be read."""
    try:
        return TrialNotes.read(trial, opener_of(trial))
    except CodecError:
        return TrialNotes()


def save_notes(trial: Path, posted: dict[str, object]) -> dict[str, object]:
    """Write a trial's notes and return them.

    Args:
        trial: folder of the trial.
        posted: `{"tags", "text", "before": {"tags", "text"}}`; `before` is what the page showed.

    Raises:
        ConfigError: the tags or the text are none.
        AlreadyExistsError: somebody else changed them meanwhile.
    """
    before = posted.get("before")
    _parsed(posted, "body").write(trial, _parsed(before, "before"))
    return dict(notes_of(trial).document())


def _parsed(posted: object, name: str) -> TrialNotes:
    if not isinstance(posted, dict) or not isinstance(posted.get("tags"), list):
        raise ConfigError(f"{name}: expected {{tags: [...], text: ...}}")
    return TrialNotes.of(posted["tags"], posted.get("text", ""))
