"""What answers the sessions that one policy plays over the wire, and counts what they play."""

from __future__ import annotations

from typing import Any

from bray.sources.evaluation_desk import EvaluationDesk
from bray.sources.wire.counting_buffer import CountingBuffer
from bray.sources.wire.gamecore_play import GamecorePlay
from bray_actor import PolicyActor
from bray_actor.episodes import EpisodeLog
from bray_actor.policy.lane_barrier import LaneBarrier
from bray_actor.policy.session_router import MakeActor, RoutedSeat, SessionRouter
from bray_actor.policy.step_budget import Budget
from bray_actor.reset_options import NewResetOptions, ResetOptions
from bray_core.protocols import BufferProtocol, ModelProtocol

PUSH_TIMEOUT_S = 900.0
"""How long a full buffer may hold a session back: as long as a trainer may evaluate."""


class PolicyAnswers:
    """Makes the actors of one policy, by the lanes that its gamecores play.

    Args:
        play: what is played, and how.
        model: the policy.
        buffer: where the segments go.
    """

    def __init__(self, play: GamecorePlay, model: ModelProtocol, buffer: BufferProtocol) -> None:
        self._play = play
        self._model = model
        self._episodes = EpisodeLog()
        self._options = first_options(play)
        self.played = CountingBuffer(buffer, self._episodes)
        """The buffer, which counts what is pushed to it."""
        self.desk = EvaluationDesk(model, play.policy)
        """Who answers evaluation sessions."""

    def barrier(self, worker: int, budget: Budget) -> LaneBarrier:
        """Return what answers the lanes of a worker together.

        Of simulators of one's own only those that bray starts are waited for, and only while none
        is late.

        Args:
            worker: number of the worker, from 0.
            budget: what holds the steps back.
        """
        return LaneBarrier(
            self._model,
            self._play.lanes(worker),
            budget=budget,
            waits=not self._play.source.external,
            gives_up=self._play.source.is_simulator,
        )

    def maker(
        self, buffer: Any, lanes: LaneBarrier | None, push_timeout_s: float = 0.0
    ) -> MakeActor:
        """Return what makes the actor of each session.

        Args:
            buffer: where they push.
            lanes: lanes of the sessions; None: each is answered by itself.
            push_timeout_s: seconds that a full buffer may hold a session back.
        """
        make = PolicyActor.factory(
            self._model,
            self._play.policy,
            buffer=buffer,
            lanes=lanes,
            push_timeout_s=push_timeout_s,
            episodes=self._episodes,
            options=self._options,
        )
        if self._play.spaces is None:
            return make
        seat = RoutedSeat(spaces=self._play.spaces, make=make, lanes=lanes, evaluate=self.desk)
        return SessionRouter({"*": seat})

    def tell(self, news: Any) -> None:
        """Take `NewResetOptions`, where there is a curriculum."""
        if self._options is not None and isinstance(news, NewResetOptions):
            self._options.propose(news.options)


def first_options(play: GamecorePlay) -> ResetOptions | None:
    """Return the options that simulators are told; None: there is no curriculum."""
    if play.reset_options is None:
        return None
    options = ResetOptions()
    options.propose(play.reset_options)
    return options
