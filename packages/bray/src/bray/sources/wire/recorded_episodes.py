"""Where a run's episodes over the wire are recorded, and which."""

from __future__ import annotations

from pathlib import Path

from bray.run import Run
from bray.sources.wire.gamecore_play import GamecorePlay
from bray_actor import Recorder
from bray_actor.policy.session_router import MakeActor

_KEPT_EPISODES = 1000
"""Newest recorded episodes that stay where the run does not say how many."""


def some_recorded(make: MakeActor, play: GamecorePlay, episodes: Path, most: int) -> MakeActor:
    """Return a maker of the same actors, of which some are recorded if that is wanted."""
    every = play.actor.record_every
    return Recorder(episodes, every=every, max_files=most).record(make) if every else make


def episodes_of(run: Run) -> Path:
    """Return the folder of recorded episodes."""
    return run.experiment.path / "episodes"


def most_episodes_of(run: Run) -> int:
    """Return how many of the newest recorded episodes stay."""
    return _KEPT_EPISODES if run.retention is None else run.retention.episodes
