"""Finds the actor of a session when its `start` is read, by what that says of itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from bray_actor.policy.agreed_spaces import AgreedSpaces
from bray_actor.policy.lane_barrier import LaneBarrier, lane_of
from bray_actor.policy.session_start import EVALUATION, SessionStart
from bray_core.errors import ServiceError
from bray_core.protocols import ActorProtocol
from bray_core.settings.name_pattern import fits
from bray_core.spaces import Spaces

MakeActor = Callable[[str], ActorProtocol]
"""Makes the actor of a session from its name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RoutedSeat:
    """A policy that sessions may ask for, and how it answers them."""

    make: MakeActor
    """Makes the actor of a session that is trained on, from a name `lane/…`."""
    spaces: Spaces | None = None
    """What the policy sees and may do; None checks nothing."""
    name: str = ""
    """Name of the policy, by which a session may ask for it; empty is none."""
    lanes: LaneBarrier | None = None
    """Lanes of these; None: sessions have none."""
    evaluate: MakeActor | None = None
    """Makes the actor of a session of the phase `evaluation`; None refuses them."""


class MatchDesk(Protocol):
    """Answers the sessions of matches: `bray_actor.multi_agent.match_table.MatchTable`."""

    def join(self, session: str, start: SessionStart) -> ActorProtocol:
        """Return the actor of a session that plays a match.

        Raises:
            ServiceError: the match cannot be played so.
        """
        ...


class SessionRouter:
    """Makes the actors of simulators that say in `start` what they are.

    The first pattern that fits the session's agent says which policy answers it; where that has
    lanes, the session belongs to the one that its `start` names, or its own name before the first
    `/`; one that names none takes the first that is free. What it says of spaces is checked.

    Args:
        seats: Policies by pattern of the agents that they answer, such as `hunter_*`; `*` also
            fits a session that names no agent.
        matches: What answers sessions that name a match; None: they are like others.
    """

    def __init__(self, seats: Mapping[str, RoutedSeat], matches: MatchDesk | None = None) -> None:
        self._seats = {pattern: _SeatEntry(seat) for pattern, seat in seats.items()}
        self._by_name = {entry.seat.name: entry for entry in self._seats.values()}
        self._by_name.pop("", None)
        self._matches = matches

    def __call__(self, session: str) -> ActorProtocol:
        """Return the actor of a session, which finds out with its `start` what it is."""
        return RoutedActor(session, self._find)

    def _find(self, session: str, start: SessionStart) -> ActorProtocol:
        entry = self._entry(start)
        entry.spaces.check(session, start.spaces)
        if start.phase == EVALUATION:
            if entry.seat.evaluate is None:
                raise ServiceError("bad_request", "tags: phase: this server has no evaluation")
            return entry.seat.evaluate(session)
        if self._matches is not None and start.match is not None:
            return self._matches.join(session, start)
        return entry.seat.make(entry.lane_session(session, start.lane))

    def _entry(self, start: SessionStart) -> _SeatEntry:
        """Return the policy that a session asks for, or that answers its agent."""
        if start.policy is not None and self._by_name:
            if start.policy in self._by_name:
                return self._by_name[start.policy]
            raise _unknown("policy", "one of", self._by_name, start.policy)
        for pattern, entry in self._seats.items():
            if fits(start.agent or "", pattern):
                return entry
        raise _unknown("agent", "a name that fits one of", self._seats, start.agent)


def _unknown(key: str, wanted: str, known: Iterable[str], got: str | None) -> ServiceError:
    shown = "none" if got is None else repr(got[:100])
    return ServiceError("bad_request", f"{key}: expected {wanted} {', '.join(known)}; got {shown}")


class _SeatEntry:
    """A policy, and what was said to it before."""

    def __init__(self, seat: RoutedSeat) -> None:
        self.seat = seat
        self._known = frozenset(() if seat.lanes is None else seat.lanes.names)
        self.spaces = AgreedSpaces(seat.spaces)
        self._started: Counter[str] = Counter()

    def lane_session(self, session: str, lane: str | None) -> str:
        """Return the session's name in its lane: its own, where that names the lane."""
        lanes = self.seat.lanes
        if lanes is None:
            return session
        if lane is None and lane_of(session) in self._known:
            return session
        if lane is None:
            lane = lanes.free_lane()
            if lane is None:
                raise ServiceError("too_many_sessions", self._full())
            lanes.stop_waiting("sessions name no lane")
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
