"""Draws whom each learner meets, on each side that it does not play itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from bray.games.frozen_versions import FrozenVersions
from bray.games.pairings import LATEST, Opponent, Pairings, player_name
from bray.games.side_groups import SideGroup, SideGroups, group_of, meets
from bray.sources.opponents_config import OpponentsConfig
from bray_algo.league.alphastar import League
from bray_algo.league.intervals import Floats

WeighVersions: TypeAlias = Callable[[str, Sequence[str]], Floats]
"""Returns the probability of each version that a learner may meet."""


class OpponentDraw:
    """Draws the opponents of learners by a rule.

    Where the sides of a match are not alike, a learner's opponents on each of them are those who
    may play it: the latest and the versions of its own group, and those of every other group.

    Args:
        config: Rule of the opponents.
        groups: Which learners may play which sides.
        rng: Source of the draws.
        at_once: Number of opponents that are drawn for each learner and group.
    """

    def __init__(
        self,
        config: OpponentsConfig,
        groups: SideGroups,
        rng: np.random.Generator,
        at_once: int,
    ) -> None:
        self.rng = rng
        """Source of the draws."""
        self._config = config
        self._groups = groups
        self._at_once = at_once

    def pairings(self, league: League, versions: FrozenVersions, weigh: WeighVersions) -> Pairings:
        """Draw whom each learner of a league meets.

        Args:
            league: Learners, and the results of all.
            versions: Frozen versions.
            weigh: Says how probable each version is, one or more of them.
        """
        drawn = {
            learner: {
                name: weight
                for group in meets(self._groups, group_of(self._groups, learner))
                for name, weight in self._draw(league, learner, group, versions, weigh).items()
            }
            for learner in league.learners
        }
        return Pairings(
            {
                learner: tuple(
                    self._opponent(learner, name, weight, versions)
                    for name, weight in weights.items()
                )
                for learner, weights in drawn.items()
            }
        )

    def _draw(
        self,
        league: League,
        learner: str,
        group: SideGroup,
        versions: FrozenVersions,
        weigh: WeighVersions,
    ) -> dict[str, float]:
        """Return the weights of a learner's opponents on the sides of a group, by their names."""
        if self._config.rule == "league":
            matches = [league.opponent(learner).opponent for _ in range(self._at_once)]
            return {name: number / self._at_once for name, number in Counter(matches).items()}
        names = [name for name in versions.numbers if group.may_play(name)]
        now = (learner,) if learner in group.learners else group.learners
        latest = self._config.latest_share
        if not names or self._config.rule == "latest" or latest == 1:
            return dict.fromkeys(now, 1 / len(now))
        drawn = self.rng.choice(len(names), self._at_once, p=weigh(learner, names))
        share = (1 - latest) / self._at_once
        weights = {names[at]: number * share for at, number in sorted(Counter(drawn).items())}
        return {**dict.fromkeys(now, latest / len(now)), **weights} if latest else weights

    def _opponent(
        self, learner: str, name: str, weight: float, versions: FrozenVersions
    ) -> Opponent:
        if name in versions.numbers:
            return Opponent(name, weight, versions.model(name))
        # Who learns to play another side learns from the same game.
        learns = name == learner or learner not in group_of(self._groups, name).learners
        return Opponent(name if learns else player_name(name, LATEST), weight)
