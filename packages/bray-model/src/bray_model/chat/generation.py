"""Generating the answers to one request, whole or piece by piece."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Generic, NamedTuple, Protocol, TypeVar

from bray_core.errors import ServiceError
from bray_core.metrics import record
from bray_model.chat.errors import ApiError
from bray_model.chat.outcomes import Answered, AnswerJob, Choice
from bray_model.chat.prompts import ChatTokenizer
from bray_model.chat.tool_calls import ToolCallContent, ToolCallScanner, scan
from bray_model.text.engine import TextFigures
from bray_model.text.requests import Completion, TextPiece, TextRequest, Token

T = TypeVar("T")


class ChatModel(ChatTokenizer, Protocol):
    """A language model, as the endpoint needs it; `bray_model.text.text_model.TextModel` is one."""

    name: str

    @property
    def version(self) -> int:
        """Version of the weights."""
        ...

    def check(self, request: TextRequest) -> None:
        """Raise what generating for a request would raise at once."""
        ...

    async def complete(self, request: TextRequest) -> Completion:
        """Complete one prompt; cancelling the task cancels the request."""
        ...

    def stream(self, request: TextRequest) -> AsyncGenerator[TextPiece | Completion, None]:
        """Yield pieces as they are sampled, and the whole completion last."""
        ...

    def figures(self) -> TextFigures:
        """Return what it does now, and its counts."""
        ...


class AnswerPiece(NamedTuple):
    """A piece of one answer."""

    number: int
    """Number of the answer."""
    text: str
    calls: Sequence[ToolCallContent]
    tokens: Sequence[Token]
    choice: Choice | None
    """The whole answer, in its last piece."""


async def generate(model: ChatModel, job: AnswerJob) -> Answered:
    """Return all answers to a request. Cancelling the task ends them all."""
    if len(job.requests) == 1:
        completions = [await model.complete(job.requests[0])]
    else:
        async with _Cancelling[Completion]() as tasks:
            tasks += [asyncio.ensure_future(model.complete(request)) for request in job.requests]
            await asyncio.gather(*tasks)
            completions = [task.result() for task in tasks]
    choices = [_choice(job, completion) for completion in completions]
    return Answered(job, choices)


async def pieces(model: ChatModel, job: AnswerJob) -> AsyncGenerator[AnswerPiece, None]:
    """Yield the pieces of all answers as they are made. Closing the generator ends them all."""
    if len(job.requests) == 1:
        async with aclosing(_pieces_of(model, job, 0)) as answer:
            async for piece in answer:
                yield piece
        return
    queue: asyncio.Queue[AnswerPiece | BaseException] = asyncio.Queue(4 * len(job.requests))
    async with _Cancelling[None]() as tasks:
        tasks += [
            asyncio.ensure_future(_put_pieces(model, job, index, queue))
            for index in range(len(job.requests))
        ]
        num_left = len(tasks)
        while num_left:
            found = await queue.get()
            if isinstance(found, BaseException):
                raise found
            num_left -= found.choice is not None
            yield found


async def _put_pieces(
    model: ChatModel, job: AnswerJob, index: int, queue: asyncio.Queue[AnswerPiece | BaseException]
) -> None:
    try:
        async with aclosing(_pieces_of(model, job, index)) as answer:
            async for piece in answer:
                await queue.put(piece)
    except Exception as error:  # noqa: BLE001  whoever reads the queue raises it
        await queue.put(error)


async def _pieces_of(
    model: ChatModel, job: AnswerJob, index: int
) -> AsyncGenerator[AnswerPiece, None]:
    scanner = ToolCallScanner() if job.has_tools else None
    content: list[str] = []
    calls: list[ToolCallContent] = []
    began_s = first_s = time.monotonic()
    num_tokens = 0
    async with aclosing(model.stream(job.requests[index])) as stream:
        async for made in stream:
            if isinstance(made, Completion):
                _check_whole(made)
                rest = "" if scanner is None else scanner.end().content
                unparsed = 0 if scanner is None else scanner.num_unparsed
                _record_pace(began_s, first_s, num_tokens)
                whole = Choice("".join([*content, rest]), calls, made, unparsed)
                yield AnswerPiece(index, rest, (), (), whole)
                return
            if not num_tokens and made.tokens:
                first_s = time.monotonic()
            num_tokens += len(made.tokens)
            text, new = made.text, list[ToolCallContent]()
            if scanner is not None:
                text, new = scanner.feed(text)
                calls += new
            content.append(text)
            yield AnswerPiece(index, text, new, made.tokens, None)
    raise ServiceError("service_error", "the model's stream ended without a completion")


def _record_pace(began_s: float, first_s: float, num_tokens: int) -> None:
    record("chat/first_token_s", first_s - began_s)
    if num_tokens > 1:
        record("chat/token_s", (time.monotonic() - first_s) / (num_tokens - 1))


def _choice(job: AnswerJob, completion: Completion) -> Choice:
    _check_whole(completion)
    if not job.has_tools:
        return Choice(completion.text, [], completion)
    content, calls, num_unparsed = scan(completion.text)
    return Choice(content, calls, completion, num_unparsed)


def _check_whole(completion: Completion) -> None:
    """Refuse a completion that is none. Raises ServiceError."""
    if completion.finish_reason == "error":
        raise ServiceError("service_error", completion.error or "the model failed")
    if completion.finish_reason == "cancelled":
        raise ApiError("cancelled", "the request was cancelled: ask again", status=503)


class _Cancelling(Generic[T]):
    """Cancels what is left of some tasks, and waits until they are over."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Future[T]] = []

    async def __aenter__(self) -> list[asyncio.Future[T]]:
        return self._tasks

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
