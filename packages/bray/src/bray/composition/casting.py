"""Who plays in the games of a source, in training and in evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from bray.composition.evaluation import returns_of
from bray.composition.roster import Roster
from bray.goal import Goal
from bray.run import Run
from bray.sources.several_gamecores import CastMaker
from bray.templates.composition import SourcePart
from bray.training.learner import Learner
from bray_actor import Played
from bray_actor.multi_agent.seat import Cast, FixedCast, GameResult, Seat


class Casting(Protocol):
    """Says who plays a source's games."""

    cast: Cast
    """Who plays in training; it travels to the workers."""

    make_cast: CastMaker | None
    """Makes the same in the workers that answer simulators; None: who answers an agent else."""

    def after(self, played: Played) -> Any:
        """Take what was played; return what the workers' casts are to be told, or None."""
        ...

    def evaluation(self, seats: Mapping[str, Seat], main: str, goal: Goal) -> Cast:
        """Return who plays an evaluation.

        Args:
            seats: seats of the learners' snapshots, by name.
            main: name of the learner that is evaluated.
            goal: says against whom.
        """
        ...

    def returns(self, results: Sequence[GameResult], main: str, goal: Goal) -> list[float]:
        """Return what an evaluation's games count: returns, or scores of 0, 0.5 and 1."""
        ...


def casting_of(
    run: Run, roster: Roster, source: SourcePart, learners: Mapping[str, Learner]
) -> Casting:
    """Return who plays the games of a source.

    Args:
        run: makes models of frozen agents.
        roster: who plays what.
        source: the source.
        learners: learners by name.
    """
    return FixedCasting(roster, source, learners)


def learner_seats(learners: Mapping[str, Learner]) -> dict[str, Seat]:
    """Return the seats of learners in training, which record what they do."""
    return {
        name: Seat(name=name, model=one.model, config=one.policy, buffer=one.buffer)
        for name, one in learners.items()
    }


class FixedCasting:
    """Each agent is played by the same policy in every game.

    Args:
        roster: who plays what.
        source: the source.
        learners: learners by name.
    """

    def __init__(self, roster: Roster, source: SourcePart, learners: Mapping[str, Learner]) -> None:
        self._roster = roster
        self._source = source
        self.make_cast: CastMaker | None = None
        self.cast: Cast = FixedCast(self._seated(learner_seats(learners)))

    def _seated(self, seats: Mapping[str, Seat]) -> dict[str, Seat]:
        found = {}
        for agent, part in self._roster.parts(self._source).items():
            learner = self._roster.composition.learner_of(part.name)
            if learner is not None:
                found[agent] = seats[learner.name]
        return found

    def after(self, played: Played) -> Any:
        """Return None: there are no other opponents."""
        return None

    def evaluation(self, seats: Mapping[str, Seat], main: str, goal: Goal) -> Cast:
        """Return the same cast of snapshots."""
        return FixedCast(self._seated(seats))

    def returns(self, results: Sequence[GameResult], main: str, goal: Goal) -> list[float]:
        """Return the mean return of the learner's agents in each game."""
        return returns_of(results, main)
