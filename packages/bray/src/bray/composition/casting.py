"""Who plays in the games of a source, in training and in evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from bray.composition.composed_launch import ComposedLaunch
from bray.composition.evaluation import EvaluationGames, returns_of
from bray.composition.loaded import check_loaded, player_of
from bray.composition.part_errors import PartNames, errors_of
from bray.composition.roster import Roster
from bray.games.evaluate_match import evaluate_match
from bray.games.exported_opponents import ExportedOpponents
from bray.games.match_cast import MatchCast
from bray.games.matchmaker import Matchmaker
from bray.games.named_opponents import named_opponent
from bray.games.sides import sides_of
from bray.goal import Goal
from bray.sources.multi_agent_config import MatchesSourceConfig
from bray.sources.opponents_config import is_version_name
from bray.sources.wire.seat_players import CastMaker
from bray.templates.composition import AgentPart, SourcePart
from bray.training.learner import Learner
from bray_actor import Played
from bray_actor.multi_agent.seat import Cast, FixedCast, Seat
from bray_core.errors import ConfigError
from bray_core.spaces import Spaces

_RESULTS_PER_PAIRING = 32
"""Matches after which opponents are drawn anew."""


class Casting(Protocol):
    """Says who plays a source's games."""

    cast: Cast
    """Who plays in training; it travels to the workers."""
    make_cast: CastMaker | None
    """Makes the same in the workers that answer simulators; None: who answers an agent else."""

    @property
    def frozen(self) -> Mapping[str, Seat]:
        """Seats of those who never learn, by pattern of the agents that call over the wire."""
        ...

    def check(self, main: str, goal: Goal) -> None:
        """Refuse a goal whose opponent nobody finds, before anything is played.

        Args:
            main: name of the learner that is evaluated.
            goal: says against whom.
        """
        ...

    def after(self, played: Played) -> Any:
        """Take what was played; return what the workers' casts are to be told, or None."""
        ...

    def evaluate(
        self, games: EvaluationGames, seats: Mapping[str, Seat], main: str, goal: Goal
    ) -> Sequence[float]:
        """Play an evaluation; return returns, or scores of 0, 0.5 and 1.

        Args:
            games: what is played, and how often.
            seats: seats of the learners' snapshots, by name.
            main: name of the learner that is evaluated.
            goal: says against whom.
        """
        ...


def casting_of(launch: ComposedLaunch, source: SourcePart) -> Casting:
    """Return who plays the games of a source.

    Args:
        launch: what is trained.
        source: the source.
    """
    is_match = isinstance(source.config, MatchesSourceConfig)
    return MatchCasting(launch, source) if is_match else FixedCasting(launch, source)


def learner_seats(learners: Mapping[str, Learner]) -> dict[str, Seat]:
    """Return the seats of learners in training, which record what they do."""
    return {
        name: Seat(name=name, model=one.model, config=one.policy, buffer=one.buffer)
        for name, one in learners.items()
    }


def seats_by_agent(
    roster: Roster, source: SourcePart, seats: Mapping[str, Seat], exports: ExportedOpponents
) -> dict[str, Seat]:
    """Return the seat of each agent of a source, of those that never learn, too.

    Args:
        roster: who plays what.
        source: the source.
        seats: seats of the learners, by name.
        exports: policies that were trained before.
    """
    composition, found = roster.composition, {}
    for agent, part in roster.parts(source).items():
        learner = composition.learner_of(part.name)
        if learner is not None:
            found[agent] = seats[learner.name]
            continue
        spaces = roster.agents[source.name][agent]
        seat = seat_of_frozen(part, spaces, composition.seed, exports)
        check_loaded(part, seat.config, f"sources.{source.name}: {agent}", spaces)
        found[agent] = replace(seat, name=part.name)
    return found


def seat_of_frozen(part: AgentPart, spaces: Spaces, seed: int, exports: ExportedOpponents) -> Seat:
    """Return the seat of an agent that never learns.

    Args:
        part: the agent.
        spaces: what it sees and may do.
        seed: seed of its draws.
        exports: policies that were trained before.

    Raises:
        ConfigError: there is no such script; NotFoundError: no such policy. Names the setting.
    """
    key = f"agents.{part.name}.play" if part.load is None else f"models.{part.model}.load"
    with errors_of(PartNames(key)):
        return named_opponent(player_of(part), spaces, seed=seed, exports=exports)


class FixedCasting:
    """Each agent is played by the same policy, or script, in every game.

    Args:
        launch: what is trained.
        source: the source.
    """

    def __init__(self, launch: ComposedLaunch, source: SourcePart) -> None:
        self._exports = launch.run.close_with(ExportedOpponents())
        self._roster = launch.roster
        self._source = source
        self.make_cast: CastMaker | None = None
        self._playing = self._seated(learner_seats(launch.learners))
        self.cast: Cast = FixedCast(self._playing)

    @property
    def frozen(self) -> dict[str, Seat]:
        """Seats of those who never learn, by pattern of the agents; their actions are answered as
        a simulator takes them."""
        spaces, found = self._roster.agents[self._source.name], {}
        for pattern, seat in self._playing.items():
            if seat.buffer is None:
                config = replace(seat.config, spaces=spaces[pattern].described())
                found[pattern] = replace(seat, config=config)
        return found

    def _seated(self, seats: Mapping[str, Seat]) -> dict[str, Seat]:
        return seats_by_agent(self._roster, self._source, seats, self._exports)

    def check(self, main: str, goal: Goal) -> None:
        """Do nothing: nobody is drawn."""

    def after(self, played: Played) -> Any:
        """Return None: nobody else ever plays."""
        return None

    def evaluate(
        self, games: EvaluationGames, seats: Mapping[str, Seat], main: str, goal: Goal
    ) -> Sequence[float]:
        """Return the mean return of the learner's agents in each game of the snapshots."""
        return returns_of(games.play(FixedCast(self._seated(seats))), main)


class MatchCasting:
    """Learners meet one another, and frozen versions of themselves.

    Args:
        launch: what is trained; has the trial in which the league is kept.
        source: the source, whose settings name the rule.
    """

    def __init__(self, launch: ComposedLaunch, source: SourcePart) -> None:
        config: MatchesSourceConfig = source.config
        roster = launch.roster
        self._exports = launch.run.close_with(ExportedOpponents())
        self._roster = roster
        self._spaces = roster.agents[source.name]
        self._learners = {name: launch.learners[name] for name in roster.learners(source)}
        self._sides = sides_of(list(self._spaces), config.sides or None)
        self.make_cast: CastMaker | None = partial(MatchCast, self._sides)
        self.cast: Cast = MatchCast(self._sides, learner_seats(self._learners))
        self._first = _first_weights(self._learners) if config.opponents.rule == "league" else {}
        self._matchmaker = Matchmaker(
            replace(config.opponents, roles=self._roles(config)),
            {name: one.model for name, one in self._learners.items()},
            launch.run.experiment.path / "league.json",
            sides=self._sides,
            seed=roster.composition.seed,
        )
        self._frames = self._matchmaker.frames
        self._unpaired: int | None = None
        """Matches since opponents were drawn; None: they never were."""

    @property
    def frozen(self) -> dict[str, Seat]:
        """Nobody: opponents are drawn."""
        return {}

    def _roles(self, config: MatchesSourceConfig) -> dict[str, Any]:
        """Return the roles by the learners' names; a template has them by the agents'."""
        found = {}
        for agent, role in config.opponents.roles.items():
            learner = self._roster.composition.learner_of(agent)
            if learner is None:
                raise ConfigError(f"opponents.roles.{agent}: expected an agent that learns")
            found[learner.name] = role
        return found

    def check(self, main: str, goal: Goal) -> None:
        """Refuse an opponent of the goal whom nobody finds.

        Raises:
            ConfigError: names the goal's setting.
        """
        against = goal.against
        if against is None or main not in self._learners:
            return
        part = self._roster.composition.agents.get(against)
        if part is not None:
            self._check_agent(part)
            return
        if is_version_name(against):
            self._check_version(main, against)
            return
        with errors_of(PartNames("goal.against")):
            named_opponent(against, next(iter(self._spaces.values())), exports=self._exports)

    def _check_agent(self, part: AgentPart) -> None:
        if self._roster.composition.learner_of(part.name) is None:
            seat_of_frozen(part, next(iter(self._spaces.values())), 0, self._exports)

    def _check_version(self, main: str, name: str) -> None:
        known = [one.rpartition(":")[2] if ":" not in name else one for one in self._own(main)]
        if name not in known:
            there = ", ".join(known) or "none yet"
            raise ConfigError(
                f"goal.against: expected a version that the trial has, {there}, got {name!r}: "
                "versions are frozen while it trains; leave `against` out to play the newest"
            )

    def _own(self, main: str) -> list[str]:
        return [name for name in self._matchmaker.versions if name.startswith(f"{main}:")]

    def after(self, played: Played) -> Any:
        """Count the matches, freeze versions if it is time; return new pairings now and then."""
        agents = {agent for side in self._sides.values() for agent in side}
        results = [one for one in played.results if set(one.seats) == agents]
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

    def evaluate(
        self, games: EvaluationGames, seats: Mapping[str, Seat], main: str, goal: Goal
    ) -> Sequence[float]:
        """Return the score of each game against the opponent that the goal names."""
        opponents = {
            agent: self._opponent(goal.against, agent, seats, main)
            for side in self._sides.values()
            for agent in side
        }
        with games.environments() as environments:
            return evaluate_match(
                seats[main], opponents, environments, games.number, games.seed, sides=self._sides
            )

    def _opponent(
        self, against: str | None, agent: str, seats: Mapping[str, Seat], main: str
    ) -> Seat:
        composition = self._roster.composition
        if against is None:
            newest = self._own(main)
            against = newest[-1] if newest else "random"
        if (part := composition.agents.get(against)) is not None:
            learner = composition.learner_of(against)
            if learner is not None and learner.name != main:
                return seats[learner.name]
            against = player_of(part) or "random"
        return named_opponent(
            against,
            self._spaces[agent],
            seed=composition.seed,
            versions=partial(self._version, main),
            exports=self._exports,
        )

    def _version(self, main: str, name: str) -> Seat:
        config = replace(self._learners[main].policy, deterministic=True, phase="opponent")
        return Seat(name=name, model=self._matchmaker.model(name), config=config)


def _first_weights(learners: Mapping[str, Learner]) -> dict[str, dict[str, Any]]:
    """Return copies of the weights that learners begin with: a local trainer changes its module."""
    return {
        name: {key: value.detach().numpy().copy() for key, value in one.module.state_dict().items()}
        for name, one in learners.items()
    }
