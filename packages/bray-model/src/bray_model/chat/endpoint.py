"""A language model at an OpenAI-compatible endpoint, with sessions that become episodes."""

from __future__ import annotations

import asyncio
import time

from bray_core.metrics import record
from bray_model.chat.answers import Answers
from bray_model.chat.chat_actor import ChatActor
from bray_model.chat.chat_sessions import ChatSessions
from bray_model.chat.config import ChatConfig
from bray_model.chat.episodes import EpisodeListener
from bray_model.chat.generation import ChatModel
from bray_model.chat.pages import ChatPages
from bray_server import PageReply, PageRequest, PageStream

_WATCH_EVERY_S = 1.0


class ChatEndpoint:
    """Serves a language model to agent programs, and hands over what their sessions did.

    Give it to a server twice: `ServerThread(endpoint.actor, pages=endpoint, ...)`. Programs talk to
    the pages below `/v1`, game servers to the actors by `start`, `tick` and `end`. Everything runs
    on the server's event loop.

    Args:
        model: What generates, such as `bray_model.text.text_model.TextModel`. It is not closed.
        config: Bounds.
        listener: Takes each episode that is over, on the event loop; None: nobody does.
    """

    def __init__(
        self,
        model: ChatModel,
        config: ChatConfig | None = None,
        listener: EpisodeListener | None = None,
    ) -> None:
        config = config or ChatConfig()
        self.name = config.model_name or model.name
        """Name of the model, as clients ask for it."""
        self.sessions = ChatSessions(config, listener)
        """The open sessions."""
        self._model = model
        self._answers = Answers(model, config, self.sessions, self.name)
        self._pages = ChatPages(model, config, self.sessions, self._answers, self.name)
        self.error = self._pages.error
        """Returns an error that the server found, as the API has it."""
        self._watch: asyncio.TimerHandle | None = None
        self._last = (time.monotonic(), model.figures().tokens)

    async def answer(self, request: PageRequest) -> PageReply | PageStream:
        """Answer one request for a page. Raises ServiceError."""
        if self._watch is None:
            self._watch_later()
        return await self._pages.answer(request)

    def actor(self, session: str) -> ChatActor:
        """Return the actor of a game server's session."""
        if self._watch is None:
            self._watch_later()
        return ChatActor(session, self.name, self._answers, self.sessions)

    def close(self) -> None:
        """Close all sessions. The server is closed before."""
        if self._watch is not None:
            self._watch.cancel()
        self.sessions.close()

    def _watch_later(self) -> None:
        self._watch = asyncio.get_running_loop().call_later(_WATCH_EVERY_S, self._look)

    def _look(self) -> None:
        """Close sessions whose time is over, and record what goes on."""
        self.sessions.expire()
        figures = self._model.figures()
        now, before = time.monotonic(), self._last
        self._last = now, figures.tokens
        record("chat/tokens_per_s", (figures.tokens - before[1]) / (now - before[0]), kind="last")
        record("chat/running", figures.num_running, kind="last")
        record("chat/waiting", figures.num_waiting, kind="last")
        record("chat/cache_bytes", figures.cache_bytes, kind="last")
        record("chat/cache_share", figures.cache_bytes / figures.cache_limit_bytes, kind="last")
        record("chat/sessions", len(self.sessions), kind="last")
        self._watch_later()
