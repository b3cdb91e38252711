"""What every source of experience can do: the environments of a run, gamecores, self-play."""

from __future__ import annotations

from typing import Protocol

from bray_actor import Played

__all__ = ["ExperienceSource", "Played"]


class ExperienceSource(Protocol):
    """Plays with the newest policy, and pushes what it recorded into a buffer.

    In a local run the loop asks it to `collect`. On Ray it plays by itself from the first `poll`
    on, held back by the buffer or by the policy's version; `poll` also replaces what has died.
    """

    def collect(self, steps: int) -> None:
        """Play so many steps of each environment in the mean; return when they are pushed."""
        ...

    def poll(self) -> Played:
        """Return what was played since the last call; never waits for what is being played."""
        ...

    def close(self) -> None:
        """End what plays."""
        ...
