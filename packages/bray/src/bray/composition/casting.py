"""Who plays in the games of a source, in training and in evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from bray.composition.composed_launch import ComposedLaunch
from bray.composition.evaluation import EvaluationGames, returns_of
from bray.composition.loaded import check_loaded, player_of
from bray.composition.part_errors import PartNames, errors_of
from bray.composition.roster import Roster
from bray.games.exported_opponents import ExportedOpponents
from bray.games.match_scores import game_score, sides_by_seat
from bray.games.named_opponents import named_opponent
from bray.goal import Goal
from bray.sources.wire.seat_players import CastMaker
from bray.templates.composition import AgentPart, SourcePart
from bray.training.learner import Learner
from bray_actor import Played
from bray_actor.multi_agent.seat import Cast, FixedCast, Seat
from bray_core.errors import ConfigError
from bray_core.spaces import Spaces


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

    def save(self) -> None:
        """Keep what was played, for the next launch."""
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
        """Refuse a goal of games won where nobody else plays, or an opponent of one's choice.

        Raises:
            ConfigError: names the goal's setting.
        """
        names = {part.name: part for part in self._roster.parts(self._source).values()}
        if goal.win_rate is None or main not in self._roster.learners(self._source):
            return
        if goal.against is not None:
            raise ConfigError(
                f"goal.against: expected a source of kind matches, got {goal.against!r} with kind "
                f"agents, where the others are those of sources.{self._source.name}.agents: "
                "name it there, or remove `against`"
            )
        if len({_seat_name(self._roster, one) for one in names.values()}) < 2:
            raise ConfigError(
                f"goal.win_rate: expected several policies in sources.{self._source.name}.agents, "
                f"got {main} alone, which wins against nobody: `kind: matches` lets it play itself"
            )

    def after(self, played: Played) -> Any:
        """Return None: nobody else ever plays."""
        return None

    def save(self) -> None:
        """Do nothing: nothing is counted."""

    def evaluate(
        self, games: EvaluationGames, seats: Mapping[str, Seat], main: str, goal: Goal
    ) -> Sequence[float]:
        """Return the mean return of the learner's agents in each game of the snapshots; for a
        rate of games won 1, 0.5 or 0: whether it is greater than that of each other policy's."""
        results = games.play(FixedCast(self._seated(seats)))
        if goal.win_rate is None:
            return returns_of(results, main)
        return [game_score(result, main, sides_by_seat(result)) for result in results]


def _seat_name(roster: Roster, part: AgentPart) -> str:
    learner = roster.composition.learner_of(part.name)
    return part.name if learner is None else learner.name
