"""Answering requests: with what a session knows, once for each turn, whole or in chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

from bray_core.errors import BrayError
from bray_core.metrics import record
from bray_model.chat.answer_counts import counted, refused
from bray_model.chat.arrivals import Arrivals
from bray_model.chat.attempts import Attempt
from bray_model.chat.chat_sessions import ChatSessions
from bray_model.chat.config import ChatConfig
from bray_model.chat.errors import ApiError
from bray_model.chat.generation import AnswerPiece, ChatModel, generate, pieces
from bray_model.chat.messages import digests, template_messages, template_tools
from bray_model.chat.outcomes import Answered, AnswerJob, Choice
from bray_model.chat.prompts import Prompt, continued_chat, continued_text, new_chat, new_text
from bray_model.chat.replies import DONE, ChunkWriter, error_event
from bray_model.chat.request_bodies import Body, ChatBody, CompletionBody
from bray_model.chat.session import ChatSession
from bray_model.chat.token_texts import TokenTexts
from bray_model.text.requests import TextRequest

_LARGE_BYTES = 32 * 1024
"""Size of a body from which its prompt is made in a thread: it would hold up all others, as would
the first look at the vocabulary for JSON."""


_MAX_LARGE = 2
"""Large prompts that are made at a time: others wait, and are not begun where their client left."""


class Answers:
    """Makes the answers to requests of one model.

    Args:
        model: What generates.
        config: Bounds.
        sessions: The open sessions.
        name: Name of the model in replies.
    """

    def __init__(
        self, model: ChatModel, config: ChatConfig, sessions: ChatSessions, name: str
    ) -> None:
        self._model = model
        self._config = config
        self._sessions = sessions
        self._name = name
        self._arrivals = Arrivals()
        self._threads = ThreadPoolExecutor(_MAX_LARGE, thread_name_prefix="prompts")
        self.texts = TokenTexts(lambda ids: model.decode(ids, special=True), model.token_bytes)
        """Texts of single tokens."""

    # What a request asks for.

    async def prepare(
        self, body: Body, num_bytes: int, session: str | None, digest: bytes
    ) -> AnswerJob:
        """Return what is to be generated for a request.

        Args:
            body: The request.
            num_bytes: Size of its body.
            session: Id of its session; None: it belongs to none.
            digest: Digest by which it is known when it is sent again.

        Raises:
            BrayError: The request cannot be served.
        """
        if session is None:
            return await self._prepared(body, num_bytes, None)
        arrival = self._arrivals.begin(session, digest)
        try:
            self._sessions.check(session)
            job = await self._prepared(body, num_bytes, session)
        except BaseException:
            arrival.over()
            raise
        job.arrival = arrival
        if body.stream:  # which is never begun where the client is gone
            loop = asyncio.get_running_loop()
            loop.call_later(self._config.retry_grace_s, arrival.over)
        return job

    async def _prepared(self, body: Body, num_bytes: int, session: str | None) -> AnswerJob:
        if num_bytes >= _LARGE_BYTES:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self._prepare, body, session)
        if body.wanted_format() != "text":
            return await asyncio.to_thread(self._prepare, body, session)
        return self._prepare(body, session)

    def _prepare(self, body: Body, name: str | None) -> AnswerJob:
        model = self._model
        session = None if name is None else self._sessions.find(name)
        if isinstance(body, ChatBody):
            prompts: Sequence[Prompt] = [self._chat_prompt(body, session)]
        else:
            assert isinstance(body, CompletionBody)
            prompts = [self._plain_prompt(prompt, session) for prompt in body.prompts()]
        count = body.n or 1
        requests = []
        for prompt in prompts:
            if session is not None:
                session.check_room(prompt.parent, len(prompt.context_ids))
            room = max(1, model.context_length - len(prompt.ids))
            group = name if name is not None else object() if count > 1 else None
            requests += [
                TextRequest(tuple(prompt.ids), body.sampling(room, index), group)
                for index in range(count)
            ]
            model.check(requests[-1])
        return AnswerJob(body, prompts, requests, body.model or self._name, model.version)

    def _chat_prompt(self, body: ChatBody, session: ChatSession | None) -> Prompt:
        messages, tools = template_messages(body.messages), template_tools(body.tools)
        if session is None:
            known, digest = None, b""
        else:
            all_digests = digests(tools, messages)
            known, digest = session.known(all_digests), all_digests[-1]
        if known is not None:
            count, sample = known
            prompt = continued_chat(self._model, sample, messages, count - 1, tools, digest)
            if prompt is not None:
                return prompt
        digest = digest or digests(tools, messages)[-1]
        return new_chat(self._model, messages, tools, digest)

    def _plain_prompt(self, prompt: str | list[int], session: ChatSession | None) -> Prompt:
        if isinstance(prompt, str):
            known = None if session is None else session.known_text(prompt)
            if known is None:
                return new_text(self._model, prompt)
            text, sample = known
            return continued_text(self._model, sample, prompt, prompt[len(text) :])
        parent = None if session is None else session.known_ids(prompt)
        size = 0 if parent is None else parent.num_tokens
        return Prompt(prompt, parent, prompt[size:])

    # Whole answers.

    async def whole(self, job: AnswerJob, session: str | None, digest: bytes) -> Answered:
        """Return the answers to a request. Cancelled, it goes on for a while if it has a session.

        Args:
            job: The request.
            session: Id of its session.
            digest: Digest by which it is known when it is sent again.

        Raises:
            BrayError: There is no answer.
        """
        if session is None:
            return counted(await generate(self._model, job))
        entered = self._enter(session, job)
        try:
            attempt = entered.attempts.begin(digest)
            attempt.task = asyncio.ensure_future(self._work(entered, attempt, job))
            return await self._outcome_of(entered, attempt)
        finally:
            self._sessions.leave(entered)

    async def joined(self, session: str, digest: bytes) -> Answered | None:
        """Return the answers to a request that is sent again; None: it is not known."""
        while True:
            await self._arrivals.wait(session, digest)
            found = self._sessions.find(session)
            attempt = None if found is None else found.attempts.find(digest)
            if found is None or attempt is None:
                return None
            record("chat/retries", 1, kind="count")
            attempt.num_clients += 1
            entered = self._sessions.enter(session)
            entered.num_retries += 1
            try:
                return await self._outcome_of(entered, attempt)
            except ApiError:
                if not attempt.is_left:
                    raise
            finally:
                self._sessions.leave(entered)

    async def _outcome_of(self, session: ChatSession, attempt: Attempt) -> Answered:
        try:
            outcome = await asyncio.shield(attempt.outcome)
        except asyncio.CancelledError:
            attempt.num_clients -= 1
            if attempt.is_abandoned:
                loop = asyncio.get_running_loop()
                loop.call_later(self._config.retry_grace_s, _give_up, attempt)
            raise
        self._record_turn(session, attempt, outcome)
        return outcome

    async def _work(self, session: ChatSession, attempt: Attempt, job: AnswerJob) -> None:
        try:
            attempt.outcome.set_result(counted(await generate(self._model, job)))
        except asyncio.CancelledError:
            text = "the request was cancelled, since its client left or its session was ended"
            session.attempts.forget(attempt, ApiError("cancelled", text, status=503))
            raise
        except Exception as error:  # noqa: BLE001  whoever waits raises it
            session.attempts.forget(attempt, error)

    # Answers in chunks.

    async def streamed(
        self, job: AnswerJob, session: str | None, digest: bytes
    ) -> AsyncGenerator[bytes, None]:
        """Yield the events of a streamed answer. Closing the generator ends its generation."""
        if session is None:
            async with aclosing(self._events(job, None, None)) as events:
                async for event in events:
                    yield event
            return
        try:
            entered = self._enter(session, job)
        except BrayError as error:
            yield error_event(refused(error))
            return
        attempt = entered.attempts.begin(digest)
        try:
            async with aclosing(self._events(job, entered, attempt)) as events:
                async for event in events:
                    yield event
        except BaseException:
            attempt.is_left = True
            text = "the client that began the stream left"
            entered.attempts.forget(attempt, ApiError("cancelled", text, status=503))
            raise
        finally:
            self._sessions.leave(entered)

    async def _events(
        self, job: AnswerJob, session: ChatSession | None, attempt: Attempt | None
    ) -> AsyncGenerator[bytes, None]:
        writer = ChunkWriter(job, self.texts)
        yield b"".join(writer.begin(index) for index in range(job.num_choices))
        choices: dict[int, Choice] = {}
        try:
            async with aclosing(pieces(self._model, job)) as made:
                async for piece in made:
                    if piece.choice is not None:
                        choices[piece.number] = piece.choice
                    if len(choices) < job.num_choices:
                        yield _chunks(writer, piece)
                        continue
                    outcome = counted(Answered(job, [choices[i] for i in range(len(choices))]))
                    if session is not None and attempt is not None:
                        attempt.outcome.set_result(outcome)
                        self._record_turn(session, attempt, outcome)
                    yield _chunks(writer, piece) + writer.usage(outcome) + DONE
                    return
        except BrayError as error:
            if session is not None and attempt is not None:
                session.attempts.forget(attempt, error)
            yield error_event(refused(error))
        except (GeneratorExit, asyncio.CancelledError):
            record("chat/abandoned", 1, kind="count")
            raise

    async def replayed(self, outcome: Answered) -> AsyncGenerator[bytes, None]:
        """Yield the events of an answer that is there already, a chunk for each choice."""
        writer = ChunkWriter(outcome.job, self.texts)
        for index, choice in enumerate(outcome.choices):
            tokens = choice.completion.tokens()
            yield writer.begin(index) + _chunks(
                writer, AnswerPiece(index, choice.content, choice.calls, tokens, choice)
            )
        yield writer.usage(outcome) + DONE

    def _enter(self, name: str, job: AnswerJob) -> ChatSession:
        """Return the session of a job that was prepared. Raises ApiError: it was ended since."""
        if job.arrival is not None:
            job.arrival.over()
        before = self._sessions.find(name)
        session = self._sessions.enter(name)
        if session is not before and any(prompt.parent is not None for prompt in job.prompts):
            self._sessions.leave(session)
            text = f"session {name[:100]!r} was ended meanwhile: ask again"
            raise ApiError("session_ended", text, status=503)
        return session

    def _record_turn(self, session: ChatSession, attempt: Attempt, outcome: Answered) -> None:
        if attempt.is_recorded:
            return
        attempt.is_recorded = True
        self._sessions.add_turn(session, outcome)
        outcome.compact()


def _chunks(writer: ChunkWriter, piece: AnswerPiece) -> bytes:
    written = writer.text(piece.number, piece.text, piece.tokens)
    if piece.calls:
        written += writer.calls(piece.number, piece.calls)
    if piece.choice is not None:
        written += writer.end(piece.number, piece.choice)
    return written


def _give_up(attempt: Attempt) -> None:
    if attempt.is_abandoned and attempt.task is not None and not attempt.task.done():
        record("chat/abandoned", 1, kind="count")
        attempt.task.cancel()
