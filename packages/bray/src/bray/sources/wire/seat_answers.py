"""The actors of one policy of several, and the returns of their episodes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from bray.sources.wire.seat_plan import SeatPlan
from bray_actor import PolicyActor
from bray_actor.multi_agent.seat import GameResult
from bray_actor.reset_options import ResetOptions

Note = Callable[[PolicyActor], None]
"""Takes the actor of an episode that has ended."""


class SeatAnswers:
    """Makes the actors of one policy that learns, and gathers the returns of their episodes.

    Args:
        plan: model of the policy, and how it acts.
        buffer: where they push.
        pace: what holds them back; None: nothing but a full buffer.
        push_timeout_s: seconds that a full buffer may do so.
        options: options that each episode's simulator is told when it starts; None tells none.
    """

    def __init__(
        self,
        plan: SeatPlan,
        buffer: Any,
        pace: Any,
        push_timeout_s: float,
        options: ResetOptions | None = None,
    ) -> None:
        self.plan = plan
        self._options = options
        self._buffer = buffer
        self._pace = pace
        self._push_timeout_s = push_timeout_s
        self._actions = plan.config.action_vector()
        self._lock = threading.Lock()
        self._returns: list[float] = []
        self._alone: list[GameResult] = []

    def __call__(self, session: str) -> LearnerActor:
        """Return the actor of a session by itself, whose episode is a game."""
        return self.actor(session, self._note_alone)

    def of_match(self, session: str) -> LearnerActor:
        """Return the actor of a session that is a side of a match, which tells how that ended."""
        return self.actor(session, self._note)

    def actor(self, session: str, note: Note) -> LearnerActor:
        """Return the actor of a session.

        Args:
            session: id of the session.
            note: function that takes the actor when its episode has ended.
        """
        return LearnerActor(
            note,
            session,
            self.plan.model,
            self.plan.config,
            self._buffer,
            self._pace,
            push_timeout_s=self._push_timeout_s,
            actions=self._actions,
            options=self._options,
        )

    def _note(self, actor: PolicyActor) -> None:
        with self._lock:
            self._returns.append(actor.episode_return)

    def _note_alone(self, actor: PolicyActor) -> None:
        self._note(actor)
        name, own = self.plan.name, actor.episode_metrics
        result = GameResult(
            {name: name},
            {name: actor.episode_return},
            {name: actor.episode_length},
            metrics={name: own} if own else {},
        )
        with self._lock:
            self._alone.append(result)

    def take_returns(self) -> list[float]:
        """Return the returns of the episodes that ended since the last call."""
        with self._lock:
            found, self._returns = self._returns, []
        return found

    def take_alone(self) -> list[GameResult]:
        """Return the episodes of sessions by themselves that ended since the last call, a game
        each, with the policy's name for its only agent."""
        with self._lock:
            found, self._alone = self._alone, []
        return found


class LearnerActor(PolicyActor):
    """The actor of a policy that learns, whose episodes' returns are noted.

    An episode may end with steps that are in no segment: so these cannot tell.

    Args:
        note: function that takes the actor when its episode has ended.
        arguments: those of a `PolicyActor`.
        options: those of a `PolicyActor`.
    """

    def __init__(self, note: Note, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._note = note

    async def end(self, body: bytes) -> bytes:
        """Take the last outcome, and note the episode's return."""
        reply = await super().end(body)
        self._note(self)
        return reply
