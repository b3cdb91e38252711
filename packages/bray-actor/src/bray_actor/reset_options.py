"""Options of the next episodes: what a curriculum gives to environments when they are reset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class NewResetOptions(NamedTuple):
    """What a source is told when the options of its later episodes change."""

    options: Mapping[str, Any]
    """The options, all of them."""


class ResetOptions:
    """The options that sessions over the wire are told in the reply to their `start`.

    New options count from the next answered tick on. In a local run all simulators stand still when
    they are proposed, and none starts an episode between the proposal and that tick: so the same
    seed is the same run, although the simulators are processes of their own.
    """

    def __init__(self) -> None:
        self.current: Mapping[str, Any] = {}
        """The options that an episode starts with now; empty are none."""
        self._proposed: Mapping[str, Any] | None = None
        self._has_ticked = False

    def propose(self, options: Mapping[str, Any]) -> None:
        """Set the options of later episodes; the first ones count at once."""
        if self._has_ticked:
            self._proposed = options
        else:
            self.current = options

    def commit(self) -> None:
        """Let what was proposed count; called when a tick has been answered."""
        self._has_ticked = True
        if self._proposed is not None:
            self.current, self._proposed = self._proposed, None
