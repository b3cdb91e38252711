"""A source of your own in a composition: who sits where, what workers make, how it evaluates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from bray.composition.casting import learner_seats, seats_by_agent
from bray.composition.composed_launch import ComposedLaunch
from bray.composition.evaluation import snapshot_seats
from bray.games.exported_opponents import ExportedOpponents
from bray.goal import Goal
from bray.sources.source_kind import SourceKind, SourceKindPlay, find_source_kind
from bray.templates.composition import SourcePart
from bray.training.evaluation import EVALUATION_SEED
from bray.training.learner import Learner
from bray_actor.multi_agent.seat import Seat
from bray_core.errors import ConfigError


class OwnSource:
    """Puts the learners of a run into the seats of a source of your own.

    Args:
        launch: what is trained.
        part: the source.
    """

    def __init__(self, launch: ComposedLaunch, part: SourcePart) -> None:
        self._exports = launch.run.close_with(ExportedOpponents())
        self._roster, self._learners = launch.roster, launch.learners
        self._part = part

    def play(
        self,
        recording: Callable[[str, str], Learner],
        quotas: Mapping[str, int],
        num_workers: int,
    ) -> SourceKindPlay:
        """Return what makes the workers' runners.

        Args:
            recording: returns a learner, by its name, with the buffer into which an agent records.
            quotas: recorded steps of one policy version, by the learner's name.
            num_workers: workers that share the quotas.
        """
        parts = self._roster.parts(self._part)
        seats = self._seated(learner_seats(self._learners))
        for agent, seat in seats.items():
            if seat.buffer is not None:
                buffer = recording(seat.name, parts[agent].name).buffer
                seats[agent] = replace(seat, buffer=buffer)
        return SourceKindPlay.of(
            self._part.name,
            self._part.kind,
            self._part.config,
            seats=seats,
            quotas=quotas,
            num_workers=num_workers,
            seed=self._roster.composition.seed,
        )

    def _seated(self, seats: Mapping[str, Seat]) -> dict[str, Seat]:
        return seats_by_agent(self._roster, self._part, seats, self._exports)

    def evaluate(self, main: str, goal: Goal) -> Sequence[float] | None:
        """Return the results of an evaluation; None where the source leaves it to training.

        Args:
            main: name of the learner that is evaluated.
            goal: says how many episodes there are.

        Raises:
            ConfigError: the source returns something else.
        """
        found: type[SourceKind[Any]] = find_source_kind(self._part.kind)
        if found.evaluate is SourceKind.evaluate:
            return None  # then no snapshot is worth its time
        rows = {name: self._roster.rows_of(name) for name in self._learners}
        with ExitStack() as stack:
            snapshots = snapshot_seats(self._learners, rows, stack)
            seats = self._seated(snapshots)
            results: Any = found(self._part.config).evaluate(
                seats,
                agents=[agent for agent, seat in seats.items() if seat.name == main],
                episodes=goal.evaluation_episodes,
                seed=self._roster.composition.seed + EVALUATION_SEED,
            )
        return None if results is None else self._checked(found, results)

    def _checked(self, found: type[Any], results: Any) -> list[float]:
        try:
            numbers = [float(one) for one in results]
        except (TypeError, ValueError):  # no sequence, or not of numbers
            numbers = []
        if not numbers or not all(map(math.isfinite, numbers)):
            raise ConfigError(
                f"sources.{self._part.name}: {found.__name__}.evaluate: expected the results of "
                f"one episode or more, finite numbers, got {results!r:.100}: return None where the "
                "returns of training shall decide"
            )
        return numbers
