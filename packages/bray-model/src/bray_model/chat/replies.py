"""Answers as OpenAI's API has them: whole, and in chunks of server-sent events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from bray_core.errors import ServiceError
from bray_model.chat.errors import error_body
from bray_model.chat.outcomes import Answered, AnswerJob, Choice
from bray_model.chat.token_texts import TokenTexts
from bray_model.chat.tool_calls import ToolCallContent
from bray_model.text.requests import Token

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


def event(content: object) -> bytes:
    """Return a server-sent event."""
    return b"data: %b\n\n" % _encode(content)


def error_event(error: ServiceError) -> bytes:
    """Return the event that ends a stream with an error."""
    return b"data: %b\n\n" % error_body(error, getattr(error, "status", 500))


def whole(outcome: Answered, texts: TokenTexts) -> bytes:
    """Return all answers to a request as JSON."""
    job = outcome.job
    choices = []
    for index, choice in enumerate(outcome.choices):
        logprobs = None
        if job.body.num_logprobs() is not None:
            logprobs = _logprobs(job, choice.completion.tokens(), texts, 0)
        shown: dict[str, Any] = {"index": index}
        if job.is_chat:
            message: dict[str, Any] = {"role": "assistant", "content": choice.content}
            message["refusal"] = None
            if choice.calls:
                message["content"] = choice.content or None
                message["tool_calls"] = choice.calls
            shown["message"] = message
        else:
            shown["text"] = choice.content
        shown["logprobs"] = logprobs
        shown["finish_reason"] = choice.finish_reason
        if job.body.return_token_ids:
            shown["token_ids"] = choice.completion.ids.tolist()
            if not job.is_chat:
                shown["prompt_token_ids"] = list(job.prompt_of(index).ids)
        choices.append(shown)
    kind = "chat.completion" if job.is_chat else "text_completion"
    reply = {**_head(job, kind), "choices": choices, "usage": outcome.usage()}
    if job.body.return_token_ids and job.is_chat:
        reply["prompt_token_ids"] = list(job.prompts[0].ids)
    return _encode(reply)


class ChunkWriter:
    """Writes the chunks of a streamed answer.

    Args:
        job: The request.
        texts: Texts of single tokens.
    """

    def __init__(self, job: AnswerJob, texts: TokenTexts) -> None:
        self._job = job
        self._texts = texts
        self._wants_logprobs = job.body.num_logprobs() is not None
        self._wants_ids = bool(job.body.return_token_ids)
        self._head = _head(job, "chat.completion.chunk" if job.is_chat else "text_completion")
        if job.body.wants_usage:
            self._head["usage"] = None
        self._num_calls = [0] * job.num_choices
        self._num_characters = [0] * job.num_choices

    def begin(self, index: int) -> bytes:
        """Return the chunk that begins an answer; empty where the API has none."""
        job = self._job
        if not job.is_chat:
            return b""
        extra = {"prompt_token_ids": list(job.prompts[0].ids)} if self._wants_ids else {}
        return self._chunk(index, {"delta": {"role": "assistant", "content": ""}}, (), None, extra)

    def text(self, index: int, text: str, tokens: Sequence[Token]) -> bytes:
        """Return the chunk of a piece of an answer; empty if it would say nothing."""
        if not text and not (tokens and (self._wants_logprobs or self._wants_ids)):
            return b""
        said = {"delta": {"content": text}} if self._job.is_chat else {"text": text}
        chunk = self._chunk(index, said, tokens, None)
        self._num_characters[index] += len(text)
        return chunk

    def calls(self, index: int, calls: Sequence[ToolCallContent]) -> bytes:
        """Return the chunks of calls of tools."""
        written = b""
        for call in calls:
            number = self._num_calls[index]
            self._num_calls[index] += 1
            delta = {"tool_calls": [{"index": number, **call}]}
            written += self._chunk(index, {"delta": delta}, (), None)
        return written

    def end(self, index: int, choice: Choice) -> bytes:
        """Return the chunk that says why an answer is over."""
        said: dict[str, Any] = {"delta": {}} if self._job.is_chat else {"text": ""}
        return self._chunk(index, said, (), choice.finish_reason)

    def usage(self, outcome: Answered) -> bytes:
        """Return the chunk that counts tokens, if it was asked for."""
        if not self._job.body.wants_usage:
            return b""
        return event({**self._head, "choices": [], "usage": outcome.usage()})

    def _chunk(
        self,
        index: int,
        said: dict[str, Any],
        tokens: Sequence[Token],
        finish_reason: str | None,
        extra: dict[str, Any] | None = None,
    ) -> bytes:
        logprobs = None
        if self._wants_logprobs and tokens:
            logprobs = _logprobs(self._job, tokens, self._texts, self._num_characters[index])
        choice = {"index": index, **said, "logprobs": logprobs, "finish_reason": finish_reason}
        if self._wants_ids and tokens:
            choice["token_ids"] = [token.id for token in tokens]
        return event({**self._head, **(extra or {}), "choices": [choice]})


def _head(job: AnswerJob, kind: str) -> dict[str, Any]:
    return {
        "id": job.id,
        "object": kind,
        "created": job.created,
        "model": job.model,
        "system_fingerprint": f"version-{job.version}",
    }


def _logprobs(
    job: AnswerJob, tokens: Sequence[Token], texts: TokenTexts, offset: int
) -> dict[str, Any]:
    if job.is_chat:
        return texts.chat_logprobs(tokens)
    return texts.completion_logprobs(tokens, offset)
