"""Who plays in matches: learners, their frozen versions, and whom a goal names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from bray.composition.casting import learner_seats
from bray.composition.composed_launch import ComposedLaunch
from bray.composition.evaluation import EvaluationGames, returns_of
from bray.composition.goal_opponents import GoalOpponents
from bray.composition.roster import Roster
from bray.games.evaluate_match import evaluate_match
from bray.games.evaluation_cast import EvaluationCast
from bray.games.exported_opponents import ExportedOpponents
from bray.games.match_cast import MatchCast
from bray.games.matchmaker import Matchmaker
from bray.games.side_groups import group_of
from bray.games.sides import sides_in
from bray.goal import Goal
from bray.sources.multi_agent_config import MatchesSourceConfig
from bray.sources.wire.seat_players import CastMaker
from bray.templates.composition import SourcePart
from bray.training.learner import Learner
from bray_actor import Played
from bray_actor.multi_agent.seat import Cast, Seat
from bray_core.errors import ConfigError

_RESULTS_PER_PAIRING = 32
"""Matches after which opponents are drawn anew."""


class MatchCasting:
    """Learners meet one another, and frozen versions of themselves and each other.

    Args:
        launch: what is trained; has the trial in which the league is kept.
        source: the source, whose settings name the rule.
    """

    def __init__(self, launch: ComposedLaunch, source: SourcePart) -> None:
        config: MatchesSourceConfig = source.config
        roster = launch.roster
        exports = launch.run.close_with(ExportedOpponents())
        self._learners = {name: launch.learners[name] for name in roster.learners(source)}
        seating = roster.seating(source)
        self._sides, self._groups = seating.sides, seating.groups
        make_cast = partial(MatchCast, self._sides, groups=self._groups)
        self.make_cast: CastMaker | None = make_cast
        self.cast: Cast = make_cast(learner_seats(self._learners))
        self._first = _first_weights(self._learners) if config.opponents.rule == "league" else {}
        self._matchmaker = Matchmaker(
            replace(config.opponents, roles=_roles(roster, config)),
            {name: one.model for name, one in self._learners.items()},
            launch.run.experiment.path / "league.json",
            sides=self._sides,
            groups=self._groups,
            seed=roster.composition.seed,
        )
        self._opponents = GoalOpponents(roster, source, self._learners, self._matchmaker, exports)
        self._frames = self._matchmaker.frames
        self._unpaired: int | None = None
        """Matches since opponents were drawn; None: they never were."""

    @property
    def frozen(self) -> dict[str, Seat]:
        """Nobody: opponents are drawn."""
        return {}

    def check(self, main: str, goal: Goal) -> None:
        """Refuse an opponent of the goal whom nobody finds.

        Raises:
            ConfigError: names the goal's setting.
        """
        if goal.against is not None and main in self._learners:
            self._opponents.check(main, goal.against)

    def after(self, played: Played) -> Any:
        """Count the matches, freeze versions if it is time; return new pairings now and then."""
        results = [one for one in played.results if sides_in(list(one.seats), self._sides)]
        self._matchmaker.record(results)
        for name in self._frames:
            self._frames[name] += played.frames_by_seat.get(name, 0)
        frozen = self._matchmaker.progress(self._frames)
        for copy in frozen:
            if copy.reset:
                self._learners[copy.learner].trainer.begin_anew(self._first[copy.learner])
        number = None if self._unpaired is None else self._unpaired + len(results)
        if frozen or number is None or number >= _RESULTS_PER_PAIRING:
            self._unpaired = 0
            pairings = self._matchmaker.pairings()
            self._matchmaker.save()  # a killed run loses the results since then, no more
            return pairings
        self._unpaired = number
        return None

    def save(self) -> None:
        """Write the matches since opponents were drawn last."""
        if self._unpaired is not None:
            self._matchmaker.save()

    def evaluate(
        self, games: EvaluationGames, seats: Mapping[str, Seat], main: str, goal: Goal
    ) -> Sequence[float]:
        """Return the score of each game against the opponent that the goal names; where it has a
        return to reach, or sides have their own aims, the mean return of the learner's agents."""
        opponents = self._opponents.opponents(main, goal.against, seats)
        plays = group_of(self._groups, main).sides
        is_unlike = len(self._groups) > 1
        if goal.win_rate is None and (is_unlike or goal.episode_return is not None):
            cast = EvaluationCast(seats[main], opponents, self._sides, plays)
            return returns_of(games.play(cast), main)
        with games.environments() as environments:
            return evaluate_match(
                seats[main],
                opponents,
                environments,
                games.number,
                games.seed,
                sides=self._sides,
                plays=plays,
            )


def _roles(roster: Roster, config: MatchesSourceConfig) -> dict[str, Any]:
    """Return the roles by the learners' names; a template has them by the agents'."""
    found = {}
    for agent, role in config.opponents.roles.items():
        learner = roster.composition.learner_of(agent)
        if learner is None:
            raise ConfigError(f"opponents.roles.{agent}: expected an agent that learns")
        found[learner.name] = role
    return found


def _first_weights(learners: Mapping[str, Learner]) -> dict[str, dict[str, Any]]:
    """Return copies of the weights that learners begin with: a local trainer changes its module."""
    return {
        name: {key: value.detach().numpy().copy() for key, value in one.module.state_dict().items()}
        for name, one in learners.items()
    }
