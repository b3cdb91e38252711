"""Groups of the sides of a match that the same policies may play."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from bray.games.pairings import learner_of


class SideGroup(NamedTuple):
    """Sides that show and take the same, and the learners that may play any of them."""

    sides: tuple[str, ...]
    """Names of the sides."""
    learners: tuple[str, ...]
    """Names of the learners, whose frozen versions may play them, too."""

    def may_play(self, player: str) -> bool:
        """Return whether a learner, or a version of one such as `main:v12`, fits these sides."""
        return player in self.learners or learner_of(player) in self.learners


SideGroups: TypeAlias = tuple[SideGroup, ...]
"""Each side and each learner of a match is in one of them."""


def one_group(sides: Iterable[str], learners: Iterable[str]) -> SideGroups:
    """Return the group in which any learner may play any side."""
    return (SideGroup(tuple(sides), tuple(learners)),)


def group_of(groups: SideGroups, player: str) -> SideGroup:
    """Return the group whose sides a learner, or a version of one, may play."""
    return next(group for group in groups if group.may_play(player))


def group_of_side(groups: SideGroups, side: str) -> SideGroup:
    """Return the group of a side."""
    return next(group for group in groups if side in group.sides)


def meets(groups: SideGroups, group: SideGroup) -> tuple[SideGroup, ...]:
    """Return the groups that somebody of a group may meet: its own, where that has two sides or
    more, and all others."""
    return tuple(one for one in groups if one != group or len(one.sides) > 1)
