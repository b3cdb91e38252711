"""The protocol of game servers for a language model: `start`, `tick`, `end` instead of requests.

    start  anything                                                      reply {}
    tick   {"observation": {"messages": [...], ...}, "reward": number}   reply {"action": message}
    end    {"reward": number}                                            reply {"turns", "reward"}

The messages of a tick are those that are new since the last answer; the actor keeps the
conversation. Beside them an observation may hold any field of a chat completion but `stream` and
`n`. A reward is that of the answer before, as with every other policy. Bodies are in bray's codec
or in JSON.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

from bray_core import codec
from bray_core.errors import BrayError, CodecError, ServiceError
from bray_model.chat.answers import Answers
from bray_model.chat.attempts import digest_of
from bray_model.chat.chat_sessions import ChatSessions, total
from bray_model.chat.errors import api_error, invalid
from bray_model.chat.messages import TemplateMessage
from bray_model.chat.request_bodies import ChatBody, read_body


class ChatActor:
    """Answers one session of a game server.

    Args:
        session: Id of the session.
        model: Name of the model.
        answers: What makes answers.
        sessions: The open sessions.
    """

    def __init__(self, session: str, model: str, answers: Answers, sessions: ChatSessions) -> None:
        self._session = session
        self._model = model
        self._answers = answers
        self._sessions = sessions
        self._messages: list[Any] = []
        self._rewards: list[float] = []
        self._num_answers = 0

    async def start(self, body: bytes) -> bytes:
        """Begin a conversation. Raises ServiceError."""
        _read(body)
        if self._sessions.find(self._session) is not None:
            text = f"session {self._session[:100]!r} is open already at the endpoint"
            raise ServiceError("session_exists", text)
        return codec.encode({})

    async def tick(self, body: bytes) -> bytes:
        """Answer new messages. Raises ServiceError."""
        num_rewards = len(self._rewards)
        try:
            return await self._tick(_read(body))
        except BrayError as error:
            del self._rewards[num_rewards:]  # a tick that failed brings it again
            raise _told(error) from error

    async def end(self, body: bytes) -> bytes:
        """Close the episode with its rewards; refused, too, without them. Raises ServiceError."""
        try:
            self._take_reward(_read(body))
            session = self._sessions.find(self._session)
            if session is None:
                return codec.encode({"turns": 0, "reward": 0.0})
            self._rewards += [0.0] * (self._num_answers - len(self._rewards))
            is_alone = len(self._rewards) == session.num_turns  # else a program used its id, too
            reward = self._rewards if is_alone else total(self._rewards)
            episode = self._sessions.finish(session, reward)
        except BrayError as error:
            await self.abort("its end was refused")
            raise _told(error) from error
        return codec.encode({"turns": episode.num_turns, "reward": episode.reward})

    async def abort(self, reason: str) -> None:
        """Close the episode without a reward: the game server's session was lost."""
        session = self._sessions.find(self._session)
        if session is not None:
            self._sessions.drop(session, "lost")

    async def _tick(self, message: dict[str, Any]) -> bytes:
        self._take_reward(message)
        observation = _plain(message.get("observation"), "observation")
        if not isinstance(observation, dict) or not isinstance(observation.get("messages"), list):
            raise invalid("observation", "expected an object with the new messages")
        if observation.get("stream"):
            raise invalid("stream", "expected to be left out: a tick has one whole answer")
        messages = [*self._messages, *observation["messages"]]
        asked = msgspec.json.encode({**observation, "messages": messages})
        body = read_body(ChatBody, asked, 1)
        if body.model not in (None, self._model):
            raise invalid("model", f"expected {self._model!r}, got {body.model!r}")
        digest = digest_of("tick", asked)
        job = await self._answers.prepare(body, len(asked), self._session, digest)
        outcome = await self._answers.whole(job, self._session, digest)
        choice = outcome.choices[0]
        answer: TemplateMessage = {"role": "assistant", "content": choice.content}
        if choice.calls:
            answer["tool_calls"] = choice.calls
        self._messages = [*messages, answer]
        self._num_answers += 1
        action = {**answer, "finish_reason": choice.finish_reason}
        return codec.encode({"action": action, "version": job.version})

    def _take_reward(self, message: dict[str, Any]) -> None:
        reward = message.get("reward")
        if reward is None:
            return
        try:
            value = float(reward)
        except (TypeError, ValueError):
            value = math.nan
        if not math.isfinite(value):
            raise ServiceError("bad_request", f"reward: expected a finite number, got {reward!r}")
        missing = self._num_answers - len(self._rewards)
        if missing < 1:
            if value:
                raise ServiceError("bad_request", "reward: there was no answer that it is for")
            return
        self._rewards += [0.0] * (missing - 1) + [value]


_CODES = {"overloaded": "overloaded", "too_many_sessions": "too_many_sessions"}
_CODES |= {"service_error": "service_error", "shutting_down": "draining", "deadline": "deadline"}


def _told(error: BrayError) -> ServiceError:
    """Return an error as a game server is told it."""
    told = api_error(error)
    return ServiceError(_CODES.get(told.code, "bad_request"), told.message)


def _plain(value: Any, path: str) -> Any:
    """Return what JSON can say of a value; lists of numbers come from bray's codec as arrays.

    Raises:
        ApiError: It holds bytes, a complex number, or one that is not finite.
    """
    if isinstance(value, dict):
        return {name: _plain(one, f"{path}/{name}") for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one, f"{path}/{at}") for at, one in enumerate(value)]
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        at = np.flatnonzero(~np.isfinite(value))
        if at.size:
            raise invalid(f"{path}/{at[0]}", f"expected a finite number, got {value.flat[at[0]]}")
        return value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        raise invalid(path, f"expected a finite number, got {value}")
    if value is None or isinstance(value, str | int | float):
        return value
    raise invalid(path, f"expected text, numbers, lists and objects, got {type(value).__name__}")


def _read(body: bytes) -> dict[str, Any]:
    if not body:
        return {}
    try:
        message = codec.decode(body)
    except CodecError as error:
        raise ServiceError("bad_request", f"body: {error}") from error
    if not isinstance(message, dict):
        got = type(message).__name__
        raise ServiceError("bad_request", f"body: expected an object, got {got}")
    return message
