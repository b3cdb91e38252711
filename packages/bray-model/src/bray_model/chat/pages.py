"""The endpoint's pages over HTTP: `/v1/models`, completions, and the ends of sessions."""

from __future__ import annotations

import re
import time
from urllib.parse import unquote

import msgspec

from bray_core.errors import BrayError, ServiceError
from bray_core.metrics import record
from bray_model.chat.answers import Answers
from bray_model.chat.attempts import digest_of
from bray_model.chat.chat_sessions import ChatSessions
from bray_model.chat.config import ChatConfig
from bray_model.chat.errors import ApiError, api_error, error_body, invalid
from bray_model.chat.generation import ChatModel
from bray_model.chat.replies import error_event, whole
from bray_model.chat.request_bodies import ChatBody, CompletionBody, read_body
from bray_server import PageReply, PageRequest, PageStream

_PATH = re.compile(r"(?:/sessions/([^/]+))?/v1(/.*)?")
_END = re.compile(r"/sessions/([^/]+)/end")
_RETRY = b"x-stainless-retry-count"
_KINDS: dict[str, type[ChatBody] | type[CompletionBody]] = {
    "/chat/completions": ChatBody,
    "/completions": CompletionBody,
}
_RETRY_LATER = (429, 503)


class ChatPages:
    """Answers clients of OpenAI's API.

    Args:
        model: What generates.
        config: Bounds.
        sessions: The open sessions.
        answers: What makes answers.
        name: Name of the model.
    """

    def __init__(
        self,
        model: ChatModel,
        config: ChatConfig,
        sessions: ChatSessions,
        answers: Answers,
        name: str,
    ) -> None:
        self._model = model
        self._config = config
        self._sessions = sessions
        self._answers = answers
        self._name = name
        self._began_s = int(time.time())

    async def answer(self, request: PageRequest) -> PageReply | PageStream:
        """Answer one request. Raises ServiceError."""
        try:
            return await self._answer(request)
        except BrayError as error:
            is_plain = request.path.rstrip("/").endswith("/v1/completions")
            told = api_error(error, "prompt" if is_plain else "messages")
            if not isinstance(told, ApiError):
                raise told from error
            record("chat/refused", 1, kind="count", code=told.code)
            later = {b"Retry-After": b"1"} if told.status in _RETRY_LATER else {}
            return PageReply(told.body, told.status, headers=later)

    def error(self, error: ServiceError, status: int) -> PageReply:
        """Return an error that the server found, as the API has it."""
        return PageReply(error_body(error, status), status)

    async def _answer(self, request: PageRequest) -> PageReply | PageStream:
        found = _PATH.fullmatch(request.path)
        if found is None:
            raise _no_page(request.path)
        page = (found[2] or "/").rstrip("/")
        session = None if found[1] is None else unquote(found[1])
        if page in _KINDS:
            request.expect("POST")
            return await self._complete(request, _KINDS[page], page, session)
        if page == "/models" or page.startswith("/models/"):
            request.expect("GET")
            return self._models(unquote(page[len("/models/") :]))
        end = _END.fullmatch(page)
        if page == "/end" or end is not None:
            request.expect("POST")
            named = session if end is None else unquote(end[1])
            return self._end(request, named or _header_session(request))
        raise _no_page(request.path)

    async def _complete(
        self,
        request: PageRequest,
        kind: type[ChatBody] | type[CompletionBody],
        page: str,
        session: str | None,
    ) -> PageReply | PageStream:
        size = len(request.body)
        if b"content-encoding" in request.headers:
            raise invalid(None, "Content-Encoding: expected a body as it is, got one that is not")
        if size > self._config.max_body_bytes:
            most = self._config.max_body_bytes
            text = f"body: expected at most {most} bytes, got {size}"
            raise ApiError("body_too_large", text, status=413)
        body = read_body(kind, request.body, self._config.max_choices)
        record("chat/requests", 1, kind="count", page=page[1:].replace("/", "_"))
        if body.model is not None and body.model != self._name:
            text = f"the model {body.model[:200]!r} does not exist: this server has {self._name!r}"
            raise ApiError("model_not_found", text, status=404, param="model")
        session = session or _header_session(request)
        session = session or (body.metadata or {}).get("session") or body.user or None
        digest = digest_of(page, request.body)
        if session is not None and _is_retry(request):
            outcome = await self._answers.joined(session, digest)
            if outcome is not None and body.stream:
                return PageStream(self._answers.replayed(outcome), error_chunk=error_event)
            if outcome is not None:
                return PageReply(whole(outcome, self._answers.texts))
        job = await self._answers.prepare(body, size, session, digest)
        if body.stream:
            events = self._answers.streamed(job, session, digest)
            return PageStream(events, error_chunk=error_event)
        outcome = await self._answers.whole(job, session, digest)
        return PageReply(whole(outcome, self._answers.texts))

    def _models(self, name: str) -> PageReply:
        about = {
            "id": self._name,
            "object": "model",
            "created": self._began_s,
            "owned_by": "bray",
            "max_model_len": self._model.context_length,
            "version": self._model.version,
        }
        if not name:
            return PageReply(msgspec.json.encode({"object": "list", "data": [about]}))
        if name != self._name:
            text = f"the model {name[:200]!r} does not exist: this server has {self._name!r}"
            raise ApiError("model_not_found", text, status=404, param="model")
        return PageReply(msgspec.json.encode(about))

    def _end(self, request: PageRequest, session: str | None) -> PageReply:
        if session is None:
            text = "expected a session: POST /v1/sessions/ID/end, /sessions/ID/v1/end, or a header"
            raise ApiError("bad_session", f"{text} X-Session-ID")
        return PageReply(self._sessions.end(session, request.body, is_retry=_is_retry(request)))


def _header_session(request: PageRequest) -> str | None:
    given = request.headers.get(b"x-session-id")
    return given.decode(errors="replace") if given else None


def _is_retry(request: PageRequest) -> bool:
    return request.headers.get(_RETRY, b"0") != b"0"


def _no_page(path: str) -> ApiError:
    known = "/v1/models, /v1/chat/completions, /v1/completions and /v1/sessions/ID/end"
    if path.rstrip("/").endswith("/v1/responses"):
        text = "the Responses API is not served: use /v1/chat/completions"
    else:
        text = f"{path[:200]!r} is no page of this server: it has {known}"
    return ApiError("not_found", text, status=404)
