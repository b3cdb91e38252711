"""Finds the actor of a session when its `start` is read, by what that says of lane and phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from bray_actor.policy.lane_barrier import LaneBarrier, lane_of
from bray_actor.policy.session_start import EVALUATION, SessionStart, told_spaces
from bray_core.errors import ServiceError
from bray_core.protocols import ActorProtocol
from bray_core.spaces import Spaces

MakeActor = Callable[[str], ActorProtocol]
"""Makes the actor of a session from its name."""


class SessionRouter:
    """Makes the actors of simulators that say in `start` what they are.

    A session belongs to the lane that its `start` names, or its own name before the first `/`; one
    that names none takes the first that is free. What it says of spaces is checked.

    Args:
        spaces: What the policy sees and may do.
        make: Makes the actor of a session that is trained on, from a name `lane/…`.
        lanes: Lanes of these; None: sessions have none.
        evaluate: Makes the actor of a session of the phase `evaluation`; None refuses them.
    """

    def __init__(
        self,
        spaces: Spaces,
        make: MakeActor,
        lanes: LaneBarrier | None = None,
        evaluate: MakeActor | None = None,
    ) -> None:
        self._spaces = spaces
        self._make = make
        self._lanes = lanes
        self._known = frozenset(() if lanes is None else lanes.names)
        self._evaluate = evaluate
        self._agreed: Mapping[str, Any] | None = None
        """Spaces as the last session told them, which are those of the policy."""
        self._started: Counter[str] = Counter()

    def __call__(self, session: str) -> ActorProtocol:
        """Return the actor of a session, which finds out with its `start` what it is."""
        return RoutedActor(session, self._find)

    def _find(self, session: str, start: SessionStart) -> ActorProtocol:
        self._check_spaces(session, start.spaces)
        if start.phase != EVALUATION:
            return self._make(self._name(session, start.lane))
        if self._evaluate is None:
            raise ServiceError("bad_request", "tags: phase: this server has no evaluation")
        return self._evaluate(session)

    def _check_spaces(self, session: str, described: Mapping[str, Any] | None) -> None:
        if described is None or described == self._agreed:
            return
        told = told_spaces(f"start of session {session[:100]!r}", described)
        if (difference := self._spaces.difference(told)) is not None:
            raise ServiceError("bad_spaces", difference)
        self._agreed = described

    def _name(self, session: str, lane: str | None) -> str:
        """Return the session's name in its lane: its own, where that names the lane."""
        if self._lanes is None:
            return session
        if lane is None and lane_of(session) in self._known:
            return session
        if lane is None:
            lane = self._lanes.free_lane()
            if lane is None:
                raise ServiceError("too_many_sessions", self._full())
            self._lanes.stop_waiting("sessions name no lane")
        elif lane not in self._known:
            raise ServiceError(
                "bad_request",
                f"lane: expected 0 to {len(self._known) - 1} (source.count × source.lanes), "
                f"got {lane[:100]!r}",
            )
        self._started[lane] += 1
        return f"{lane}/{self._started[lane]}"

    def _full(self) -> str:
        return (
            f"this run plays with {len(self._known)} sessions at once (source.count × "
            "source.lanes): end one, or raise source.lanes"
        )


class RoutedActor:
    """The actor of a session that has not said yet what it is; from its `start` on, another's.

    Args:
        session: Id of the session.
        find: Returns the actor that answers it.
    """

    tick: Any
    """Answers one tick; as `end` and `abort`, the method of the actor that was found."""
    end: Any
    abort: Any

    def __init__(self, session: str, find: Callable[[str, SessionStart], ActorProtocol]) -> None:
        self._session = session
        self._find = find
        self.abort = _nothing_to_free

    async def start(self, body: bytes) -> bytes:
        """Find the actor, and start it."""
        actor: Any = self._find(self._session, await SessionStart.of_body(body))
        # A tick then costs no further call.
        self.tick, self.end, self.abort = actor.tick, actor.end, actor.abort
        reply: bytes = await actor.start(body)
        return reply


async def _nothing_to_free(reason: str) -> None:
    """Do nothing: no `start` came through."""
