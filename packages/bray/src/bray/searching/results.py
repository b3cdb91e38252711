"""What a search has found: its trials, the best settings, and which settings matter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

TrialState: TypeAlias = Literal["complete", "pruned", "failed", "refused", "running"]

BEST = "best.yaml"
"""File of the search's folder with the best settings, as a template."""
DATABASE = "search.db"
"""File of the search's folder with Optuna's study."""
TEMPLATE = "template.yaml"
"""File of the search's folder with the template as it was when the search began."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchedTrial:
    """One trial of a search."""

    number: int
    """Number of the trial in Optuna's study."""
    trial: str
    """Name of its folder."""
    state: TrialState
    """Whether it ended, was ended early, failed, runs, or was not begun as its settings do not go
    together."""
    value: float | None
    """Mean return of its last evaluation; None where there was none."""
    settings: Mapping[str, Any]
    """The settings that it tried, by name."""
    frames: int = 0
    """Environment steps that it played."""
    error: str = ""
    """What it failed with, or why it was refused; else empty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchResult:
    """A search that has ended, or what it had found when it was interrupted."""

    folder: Path
    """Folder of the search: a project whose trials are those of the search."""
    trials: Sequence[SearchedTrial]
    """All trials, by number."""
    importances: Mapping[str, float]
    """Share of each setting in how the value varied, greatest first; empty where too few trials
    have ended to say."""

    @property
    def ranked(self) -> list[SearchedTrial]:
        """Trials that ended, the best first; of equal ones the one of fewer frames."""
        ended = [one for one in self.trials if one.state == "complete" and one.value is not None]
        return sorted(ended, key=lambda one: (-(one.value or 0.0), one.frames, one.number))

    @property
    def best(self) -> SearchedTrial | None:
        """The best trial; None where none has ended."""
        return next(iter(self.ranked), None)

    @property
    def best_template(self) -> Path:
        """File of the best settings as a template."""
        return self.folder / BEST

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        best = self.best
        return {
            "folder": str(self.folder),
            "best": None if best is None else asdict(best),
            "template": None if best is None else str(self.best_template),
            "importances": dict(self.importances),
            "trials": [asdict(one) for one in self.trials],
        }

    def table(self, most: int = 10) -> str:
        """Return the best trials as a table, one a line.

        Args:
            most: number of trials that are shown.
        """
        shown = self.ranked[:most]
        keys = list(dict.fromkeys(key for one in shown for key in one.settings))
        rows = [("trial", "return", "frames", *keys)]
        for one in shown:
            settings = (in_words(one.settings[key]) if key in one.settings else "" for key in keys)
            rows.append((one.trial, f"{one.value:,.6g}", f"{one.frames:,}", *settings))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)

    def count(self, state: TrialState) -> int:
        """Return the number of trials in a state."""
        return sum(one.state == state for one in self.trials)


def in_words(value: object) -> str:
    """Return a setting as a table shows it."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def trial_folder(number: int) -> str:
    """Return the name of a trial's folder; it is no name of a group of seeds, `walker-1`."""
    return f"t{number:04d}"
