"""The matches that are played over the wire: who plays which side, and how each ended."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from bray_actor.multi_agent.match import Match, is_pattern, refused
from bray_actor.multi_agent.seat import Cast, GameResult, Seat
from bray_actor.policy.policy_actor import PolicyActor
from bray_actor.policy.session_start import SessionStart
from bray_core import metrics
from bray_core.errors import ConfigError, ServiceError
from bray_server.limits.bounded_log import BoundedLog

PlaySeat = Callable[[str, Seat], PolicyActor]
"""Makes the actor of a session from its name and who plays it."""
_MOST_RESULTS = 10_000
"""Results that wait to be asked for; beyond it the oldest half is dropped."""

logger = logging.getLogger(__name__)


class MatchTable:
    """Draws who plays each match when its first session starts, and gathers how it ended.

    A session names its match, and its agent or the number of its side; all sessions of a match come
    to one worker. A match counts when all its sides have ended. It is void if one of them is lost,
    or does not come in time: then it is counted in `actor/matches_voided`, and those who play it
    may play on. Results that nobody asks for are kept up to 10,000, then dropped and counted in
    `actor/matches_dropped`.

    Args:
        cast: Says who plays; called on the event loop, and by `tell` on the caller's thread, never
            at once. Its agents may be patterns, such as `hunter_*`, of which the first that fits
            counts; sessions then say their agent, and of how many sides their match is.
        play: Makes the actor of a session.
        seed: Seed of the draws, together with the match's name.
        max_matches: Largest number of open matches; beyond it the oldest one that nobody plays is
            void.
        side_timeout_s: Seconds from a match's first start until all of its sides must have come.
        clock: What tells the time in seconds.

    Raises:
        ConfigError: a number is out of range.
    """

    def __init__(
        self,
        cast: Cast,
        play: PlaySeat,
        *,
        seed: int = 0,
        max_matches: int = 4096,
        side_timeout_s: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if max_matches < 1:
            raise ConfigError(f"max_matches: expected 1 or more, got {max_matches}")
        if not side_timeout_s > 0:
            raise ConfigError(f"side_timeout_s: expected more than 0, got {side_timeout_s}")
        self._cast = cast
        self._play = play
        self._seed = seed
        self._max_matches = max_matches
        self._side_timeout_s = side_timeout_s
        self._clock = clock
        self._lock = threading.RLock()
        self._matches: dict[str, Match] = {}
        self._results: list[GameResult] = []
        self._has_dropped = False
        """Whether the log says that results were dropped."""
        self._log = BoundedLog(logger)

    def join(self, session: str, start: SessionStart) -> MatchSession:
        """Return the actor of a session that plays a match.

        Args:
            session: Name of the session.
            start: What it says of itself.

        Raises:
            ServiceError: `bad_request`: it does not say who of the match it is, somebody else is
                that, or its match has other sides. `too_many_sessions`: too many matches are open.
        """
        if start.match is None:
            raise refused("match: expected the name of a match, got none")
        with self._lock:
            self._void_late()
            match = self._matches.get(start.match) or self._open(start)
            agent = match.agent(start)
            seat = match.seat(agent)
            actor = self._play(session, seat)
            self._matches[match.name] = match
            match.playing.add(agent)
            match.came[agent] = seat.name
        return MatchSession(self, match, agent, actor)

    def _open(self, start: SessionStart) -> Match:
        """Draw who plays a new match."""
        if len(self._matches) >= self._max_matches and not self._give_up_one():
            raise ServiceError(
                "too_many_sessions",
                f"match: {self._max_matches} matches are open: end one before the next",
            )
        assert start.match is not None
        seats = self._cast.draw(random.Random(f"{self._seed}/{start.match}"))
        if any(map(is_pattern, seats)):
            if start.sides is None:
                raise refused("sides: expected the number of the match's sides, got none")
        elif start.sides is not None and start.sides > len(seats):
            raise refused(f"sides: expected at most {len(seats)} ({', '.join(seats)})", start.sides)
        return Match(start.match, seats, start.sides, self._clock() + self._side_timeout_s)

    def _give_up_one(self) -> bool:
        """Void the oldest match that nobody plays, whose other sides have not come."""
        left = next((m for m in self._matches.values() if not m.playing), None)
        if left is not None:
            self._void(left)
            self._forget(left)
        return left is not None

    def ended(self, match: Match, agent: str, actor: PolicyActor) -> None:
        """Take how a side ended; the last one's makes the match's result.

        Args:
            match: Match that was played.
            agent: Who ended.
            actor: What answered it.
        """
        with self._lock:
            match.playing.discard(agent)
            match.returns[agent] = actor.episode_return
            match.lengths[agent] = actor.episode_length
            if actor.score is not None:
                match.scores[agent] = actor.score
            if actor.episode_metrics:
                match.metrics[agent] = actor.episode_metrics
            if not match.is_void and len(match.returns) == match.num_sides:
                self._add(match.result())
                del self._matches[match.name]
            self._forget(match)

    def _add(self, result: GameResult) -> None:
        if len(self._results) >= _MOST_RESULTS:
            dropped = _MOST_RESULTS // 2
            del self._results[:dropped]
            metrics.record("actor/matches_dropped", dropped, kind="count")
            if not self._has_dropped:
                self._has_dropped = True
                self._log.error(
                    f"matches: nobody asked for the results of {_MOST_RESULTS:,}: the oldest "
                    f"{dropped:,} are dropped, and those to come are counted in "
                    "actor/matches_dropped"
                )
        self._results.append(result)
        metrics.record("actor/matches", 1, kind="count")

    def lost(self, match: Match, agent: str) -> None:
        """Take that a side was lost: the match is void.

        Args:
            match: Match that was played.
            agent: Who was lost.
        """
        with self._lock:
            match.playing.discard(agent)
            self._void(match)
            self._forget(match)

    def _void(self, match: Match) -> None:
        if not match.is_void:
            match.is_void = True
            metrics.record("actor/matches_voided", 1, kind="count")

    def _void_late(self) -> None:
        """Void the matches whose sides have not all come in time."""
        now = self._clock()
        late = [m for m in self._matches.values() if now > m.until and not m.is_complete]
        for match in late:
            if not match.is_void:
                self._log.error(f"match {match.name}: a side did not come: it is void")
            self._void(match)
            self._forget(match)

    def _forget(self, match: Match) -> None:
        """Forget a void match that nobody plays any more."""
        if match.is_void and not match.playing and self._matches.get(match.name) is match:
            del self._matches[match.name]

    def poll(self) -> list[GameResult]:
        """Return the results of the matches that ended since the last call."""
        with self._lock:
            self._void_late()
            found, self._results = self._results, []
        return found

    def tell(self, news: Any) -> None:
        """Let the cast know what the driver says, such as new opponents."""
        with self._lock:
            self._cast.tell(news)

    @property
    def num_open(self) -> int:
        """Number of matches that are being played."""
        return len(self._matches)


class MatchSession:
    """The actor of one side of a match, whose end its match is told.

    Args:
        table: Table of the matches.
        match: Match that it plays.
        agent: Who of the match it is.
        actor: What answers it.
    """

    def __init__(self, table: MatchTable, match: Match, agent: str, actor: PolicyActor) -> None:
        self._table = table
        self._match = match
        self._agent = agent
        self._actor = actor
        self.tick = actor.tick
        """Answers one tick, as the policy does."""

    async def start(self, body: bytes) -> bytes:
        """Begin the side's episode."""
        try:
            return await self._actor.start(body)
        except BaseException:
            self._table.lost(self._match, self._agent)
            raise

    async def end(self, body: bytes) -> bytes:
        """Take the last outcome."""
        try:
            reply = await self._actor.end(body)
        except BaseException:
            self._table.lost(self._match, self._agent)
            raise
        self._table.ended(self._match, self._agent, self._actor)
        return reply

    async def abort(self, reason: str) -> None:
        """Void the match, and give back what was recorded last."""
        self._table.lost(self._match, self._agent)
        await self._actor.abort(reason)
