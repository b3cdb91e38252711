"""Which weights a model answers with, and in which order it took them."""

from __future__ import annotations

from typing import NamedTuple


class Stamp(NamedTuple):
    """Goes with every set of weights from process to process; a larger `sequence` is later."""

    sequence: int
    """Counts publishes and loads: going back to an old version is an update too."""
    version: int
    """The number that answers carry."""
    newest: int
    """The largest version ever used: the next publish takes the one after it."""

    @classmethod
    def of(cls, version: int) -> Stamp:
        """Return the stamp of a version where none is ever gone back to."""
        return cls(version, version, version)

    def after_publish(self) -> Stamp:
        """Return the stamp of a publish that follows this one."""
        return Stamp(self.sequence + 1, self.newest + 1, self.newest + 1)

    def after_load(self, version: int, newest: int) -> Stamp:
        """Return the stamp of an old version made current; `newest` is the largest on disk."""
        return Stamp(self.sequence + 1, version, max(self.newest, version, newest))
