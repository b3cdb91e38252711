"""Who answers a session where several policies play, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from bray.sources.evaluation_desk import EvaluationDesk
from bray.sources.source import Played
from bray.sources.wire.counting_buffer import CountingBuffer
from bray.sources.wire.gamecore_play import GamecorePlay
from bray.sources.wire.seat_answers import SeatAnswers
from bray.sources.wire.seat_plan import AnySeat, SeatPlan
from bray_actor import PolicyActor
from bray_actor.multi_agent.match_table import MatchTable
from bray_actor.multi_agent.seat import Cast, FixedCast, GameResult, Seat
from bray_actor.policy.session_router import RoutedSeat, SessionRouter
from bray_actor.reset_options import NewResetOptions, ResetOptions
from bray_core.spaces import Spaces

CastMaker = Callable[[Mapping[str, Seat]], Cast]
"""Makes what says who plays each match, from the policies that learn, by name; picklable."""


class SeatPlayers:
    """Finds who answers a session: a policy that learns, one that does not, or an evaluation.

    Args:
        play: what is played, and how.
        seats: who answers, by pattern of the agents; those without a buffer record nothing.
        answers: what makes their actors, by name.
        make_cast: makes what says who plays the matches.
        options: options that each episode's simulator is told when it starts; None tells none.
    """

    def __init__(
        self,
        play: GamecorePlay,
        seats: Mapping[str, AnySeat],
        answers: Mapping[str, SeatAnswers],
        make_cast: CastMaker | None,
        options: ResetOptions | None = None,
    ) -> None:
        self._answers = answers
        self._options = options
        self.desks = {
            name: EvaluationDesk(answer.plan.model, answer.plan.config)
            for name, answer in answers.items()
        }
        """Who answers the evaluation sessions of each policy."""
        learners = {name: answer.plan.seat for name, answer in answers.items()}
        cast: Cast = FixedCast(
            {
                pattern: learners[one.name] if isinstance(one, SeatPlan) else one
                for pattern, one in seats.items()
            }
        )
        if make_cast is not None:
            cast = make_cast(learners)
        self._matches = MatchTable(cast, self._play_seat, seed=play.seed)
        routed = {pattern: self._routed(play, one) for pattern, one in seats.items()}
        self.router = SessionRouter(routed, self._matches)
        """Makes the actor of a session."""

    def _routed(self, play: GamecorePlay, seat: AnySeat) -> RoutedSeat:
        described = seat.config.spaces
        spaces = play.spaces if described is None else Spaces.parse(seat.name, described)
        if isinstance(seat, SeatPlan):
            make, evaluate = self._answers[seat.name], self.desks[seat.name]
            return RoutedSeat(name=seat.name, make=make, spaces=spaces, evaluate=evaluate)
        config = replace(seat.config, role="opponent")
        answer = PolicyActor.factory(seat.model, config, options=self._options)
        return RoutedSeat(name=seat.name, make=answer, spaces=spaces, evaluate=answer)

    def _play_seat(self, session: str, seat: Seat) -> PolicyActor:
        """Return the actor of one side of a match."""
        if seat.buffer is not None:
            return self._answers[seat.name].of_match(session)
        config = replace(seat.config, role="opponent")
        return PolicyActor(session, seat.model, config, options=self._options)

    def poll(self, buffers: Mapping[str, CountingBuffer]) -> Played:
        """Return what was played since the last call.

        Args:
            buffers: what counted the segments of each policy.
        """
        frames = {name: buffer.poll().frames for name, buffer in buffers.items()}
        returns = [one for answer in self._answers.values() for one in answer.take_returns()]
        alone = [one for answer in self._answers.values() for one in answer.take_alone()]
        results: tuple[GameResult, ...] = (*self._matches.poll(), *alone)
        return Played(sum(frames.values()), returns, results, frames)

    def tell(self, news: Any) -> None:
        """Tell the cast what the driver says; `NewResetOptions` are for the simulators."""
        if not isinstance(news, NewResetOptions):
            self._matches.tell(news)
        elif self._options is not None:
            self._options.propose(news.options)
