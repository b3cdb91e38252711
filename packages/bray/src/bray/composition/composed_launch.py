"""What one launch of a composition trains, and by which parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bray.composition.roster import Roster
from bray.goal import Goal
from bray.run import Run
from bray.training.learner import Learner


@dataclass(frozen=True, kw_only=True, slots=True)
class ComposedLaunch:
    """A composition whose learners are made, and that is about to play."""

    run: Run
    """Makes components, and closes them."""
    roster: Roster
    """Who plays what."""
    algorithms: Mapping[str, Any]
    """Algorithms by the names of their learners: `RecordedPolicy`, or `Offline`."""
    learners: Mapping[str, Learner]
    """Learners by name."""
    goal: Goal
    """The goal, with all that the composition left open decided."""
