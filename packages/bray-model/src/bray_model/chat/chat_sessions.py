"""The sessions that are open: bounded in number, size and time, and their ends.

Sessions stand in the order of their last request and of their first. What a request costs does not
depend on how many there are: expired ones are taken from the front.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict

import msgspec

from bray_core.metrics import record
from bray_model.chat.attempts import digest_of
from bray_model.chat.config import ChatConfig
from bray_model.chat.episodes import ChatEpisode, EpisodeEnd, EpisodeListener
from bray_model.chat.errors import ApiError, invalid
from bray_model.chat.outcomes import Answered
from bray_model.chat.session import ChatSession

_MOST_ENDS = 4096
"""Number of ends that are remembered, for requests that are sent again."""
MAX_NAME_BYTES = 256


class SessionEndBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request that ends a session."""

    reward: float | list[float] | None = None


class ChatSessions:
    """Opens sessions, closes them, and hands their episodes over.

    Args:
        config: Bounds.
        listener: Takes each episode that is over; None: nobody does.
    """

    def __init__(self, config: ChatConfig, listener: EpisodeListener | None) -> None:
        self._config = config
        self._listener = listener
        self._by_use: OrderedDict[str, ChatSession] = OrderedDict()
        self._by_age: OrderedDict[str, ChatSession] = OrderedDict()
        self._overdue: dict[str, ChatSession] = {}
        """Sessions that were open for too long, and are closed after their last answer."""
        self._ends: OrderedDict[tuple[str, bytes], bytes] = OrderedDict()
        self._num_tokens = 0

    def __len__(self) -> int:
        return len(self._by_use)

    def find(self, name: str) -> ChatSession | None:
        """Return the session of an id if it is open."""
        return self._by_use.get(name)

    def check(self, name: str) -> None:
        """Refuse an id that no session can have, or that has no room.

        Raises:
            ApiError: The id is too long, there is no room for one more, or its time is over.
        """
        self.expire()
        if name in self._overdue:
            text = f"session {name[:100]!r} is open for more than {self._config.session_s:g} s"
            raise ApiError("session_expired", f"{text}: end it, or raise session_s", status=410)
        session = self._by_use.get(name)
        if session is not None:
            self._touch(session)
        else:
            size = len(name.encode(errors="replace"))
            if not 0 < size <= MAX_NAME_BYTES:
                text = f"expected a session id of 1 to {MAX_NAME_BYTES} bytes, got {size}"
                raise ApiError("bad_session", text)
        self._make_room(0 if session is not None else 1)

    def enter(self, name: str) -> ChatSession:
        """Return the session of an id for one request, a new one if there is none.

        Call `leave` when the request is over.

        Raises:
            ApiError: As `check` does.
        """
        self.check(name)
        session = self._by_use.get(name)
        if session is None:
            session = ChatSession(name, self._config.max_session_tokens)
            self._by_use[name] = self._by_age[name] = session
        self._touch(session)
        session.num_running += 1
        return session

    def leave(self, session: ChatSession) -> None:
        """Note that a request of a session is over."""
        session.num_running -= 1
        if self._by_use.get(session.name) is not session:
            return  # the server stopped meanwhile
        self._touch(session)
        if session.num_running == 0 and self._overdue.get(session.name) is session:
            self._close(session, "timeout", None, None)

    def add_turn(self, session: ChatSession, outcome: Answered) -> None:
        """Remember the answers to one request of a session."""
        before = session.num_tokens
        session.add_turn(outcome)
        if self._by_use.get(session.name) is session:
            self._num_tokens += session.num_tokens - before

    def _touch(self, session: ChatSession) -> None:
        session.last_used_s = time.monotonic()
        self._by_use.move_to_end(session.name)

    def end(self, name: str, body: bytes, *, is_retry: bool) -> bytes:
        """End a session as its program asks for, and return the answer.

        Args:
            name: Id of the session.
            body: JSON, `{"reward": number}`, or one number for each turn.
            is_retry: Whether the request was sent before: it then ends nothing twice.

        Raises:
            ApiError: No such session is open, requests of it are under way, or the reward is no
                number, or not one for each turn.
        """
        digest = digest_of("end", body)  # bodies may be long
        session = self._by_use.get(name)
        if session is None and is_retry and (name, digest) in self._ends:
            record("chat/retries", 1, kind="count")
            return self._ends[name, digest]
        if session is None:
            text = f"session {name[:100]!r} is not open: it had no request yet, ended, or timed out"
            raise ApiError("session_not_found", text, status=404)
        asked = _read_end(body)
        session.attempts.end()
        if session.num_running:
            text = f"{session.num_running} requests of session {name[:100]!r} are under way"
            raise ApiError("session_busy", f"{text}: end it after their answers", status=409)
        episode = self.finish(session, asked.reward)
        reply = msgspec.json.encode(
            {
                "session": name,
                "reward": episode.reward,
                "turns": episode.num_turns,
                "segments": len(episode.segments),
                "tokens": episode.num_own,
            }
        )
        self._ends[name, digest] = reply
        if len(self._ends) > _MOST_ENDS:
            self._ends.popitem(last=False)
        return reply

    def finish(self, session: ChatSession, reward: float | list[float] | None) -> ChatEpisode:
        """Close a session with its reward and return its episode.

        Args:
            session: The session.
            reward: Of the whole episode, or of each turn.

        Raises:
            ApiError: The reward is not finite, or not one for each turn.
        """
        total, each = _rewards(reward, session.num_turns)
        return self._close(session, "ended", total, each)

    def drop(self, session: ChatSession, ended_by: EpisodeEnd) -> None:
        """Close a session without a reward, if it is open."""
        if self._by_use.get(session.name) is session:
            session.attempts.end(also_awaited=True)
            self._close(session, ended_by, None, None)

    def expire(self) -> None:
        """Close sessions that were at rest, or open, for too long."""
        now, config = time.monotonic(), self._config
        while self._by_use:
            session = next(iter(self._by_use.values()))
            if now - session.last_used_s < config.session_idle_s:
                break
            if session.num_running:
                self._touch(session)
            else:
                self._close(session, "timeout", None, None)
        while self._by_age:
            session = next(iter(self._by_age.values()))
            if now - session.began_s < config.session_s:
                break
            if session.num_running:
                del self._by_age[session.name]
                self._overdue[session.name] = session
            else:
                self._close(session, "timeout", None, None)

    def close(self) -> None:
        """Close all sessions: the server stops."""
        for session in list(self._by_use.values()):
            self.drop(session, "shutdown")

    def _make_room(self, num_new: int) -> None:
        config, most = self._config, self._config.max_held_tokens
        while len(self) + num_new > config.max_sessions or self._num_tokens >= most:
            oldest = next(iter(self._by_use.values()))
            if oldest.num_running or time.monotonic() - oldest.last_used_s < config.min_rest_s:
                text = (
                    f"{len(self)} sessions with {self._num_tokens} tokens are open, the limit, and "
                    "all of them are in use: end some, or come again later"
                )
                raise ApiError("too_many_sessions", text, status=429)
            self._close(oldest, "full", None, None)

    def _close(
        self,
        session: ChatSession,
        ended_by: EpisodeEnd,
        reward: float | None,
        turn_rewards: list[float] | None,
    ) -> ChatEpisode:
        del self._by_use[session.name]
        self._by_age.pop(session.name, None)
        self._overdue.pop(session.name, None)
        self._num_tokens -= session.num_tokens
        episode = session.episode(ended_by, reward, turn_rewards)
        record("chat/episodes", 1, kind="count", ended_by=ended_by)
        record("chat/turns_per_episode", episode.num_turns)
        record("chat/segments_per_episode", len(episode.segments))
        if self._listener is not None and (episode.num_turns or ended_by == "ended"):
            self._listener(episode)
        return episode


def _read_end(body: bytes) -> SessionEndBody:
    if not body.strip():
        return SessionEndBody()
    try:
        return msgspec.json.decode(body, type=SessionEndBody)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        wanted = 'expected {"reward": number}, or a list of one number for each turn'
        raise invalid("reward", f"{wanted}: {error}") from None


def _rewards(
    reward: float | list[float] | None, num_turns: int
) -> tuple[float | None, list[float] | None]:
    if reward is None:
        return None, None
    each = reward if isinstance(reward, list) else [reward]
    for one in each:
        if not math.isfinite(one):
            raise invalid("reward", f"expected finite numbers, got {one}")
    if not isinstance(reward, list):
        return reward, None
    if len(reward) != num_turns:
        raise invalid("reward", f"expected one for each of {num_turns} turns, got {len(reward)}")
    return total(reward), reward


def total(rewards: list[float]) -> float:
    """Return the sum of rewards. Raises ApiError: it is beyond what a number can be."""
    try:
        return math.fsum(rewards)
    except OverflowError:
        raise invalid("reward", "expected a finite sum, got one beyond 1.8e308") from None
