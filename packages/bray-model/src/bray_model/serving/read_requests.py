"""Requests for inference that were read, and are answered together with others of their model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bray_core.errors import DeadlineError, SpecError
from bray_core.protocols import Answer
from bray_model.model import Model
from bray_model.serving.infer_request import InferRequest
from bray_model.tree_spec import Leaves
from bray_server import PageReply

logger = logging.getLogger(__name__)

Replies = list[PageReply | Exception | None]
"""The reply to each request, or why it has none; None: it is to be asked alone."""


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A request for inference, read against the model that it was for at that time."""

    name: str
    """Name of the model."""
    model: Model
    """Model that answers."""
    asked: InferRequest
    """What is asked of it."""

    @property
    def is_plain(self) -> bool:
        """Whether it may share a batch, and the wait for it, with others."""
        return self.asked.is_plain and self.asked.num_rows < self.model.config.max_batch_size


def page_reply(content: tuple[bytes, int | None]) -> PageReply:
    """Return a reply as a page.

    Args:
        content: Its body, and how much of it is JSON; None: all.
    """
    body, json_bytes = content
    if json_bytes is None:
        return PageReply(body)
    return PageReply(
        body,
        content_type=b"application/octet-stream",
        headers={b"Inference-Header-Content-Length": b"%d" % json_bytes},
    )


async def answer_plain(requests: Sequence[ReadRequest]) -> Replies:
    """Answer plain requests for one model, as many rows at a time as a batch has.

    Args:
        requests: The requests, all for the model of the first.
    """
    chunks = list(_chunks(requests))
    if len(chunks) == 1:
        return await _answer_chunk(requests)
    found = await asyncio.gather(*map(_answer_chunk, chunks))
    return [reply for replies in found for reply in replies]


def _chunks(requests: Sequence[ReadRequest]) -> Iterator[Sequence[ReadRequest]]:
    most, rows, start = requests[0].model.config.max_batch_size, 0, 0
    for index, request in enumerate(requests):
        rows += request.asked.num_rows
        if rows > most:
            yield requests[start:index]
            rows, start = request.asked.num_rows, index
    yield requests[start:]


async def _answer_chunk(requests: Sequence[ReadRequest]) -> Replies:
    model = requests[0].model
    columns = zip(*(request.asked.leaves for request in requests), strict=True)
    leaves = [np.concatenate(column) for column in columns]
    try:
        answer = await model.infer(*model.signature.input_tree.build(leaves), batch=True)
    except DeadlineError as error:
        return [error.with_traceback(None)] * len(requests)
    except Exception as error:  # noqa: BLE001  a bad request among them fails alone
        logger.debug("%d requests failed together: %s", len(requests), error)
        return [None] * len(requests)
    return _replies(requests, answer)


def _replies(requests: Sequence[ReadRequest], answer: Answer) -> Replies:
    outputs = requests[0].model.signature.output_tree.leaves(answer.outputs)
    assert outputs is not None
    start, replies = 0, Replies()
    for request in requests:
        stop = start + request.asked.num_rows
        rows: Leaves = [leaf[start:stop] for leaf in outputs]
        start = stop
        try:
            replies.append(page_reply(request.asked.reply_of(request.name, rows, answer.version)))
        except SpecError as error:
            replies.append(error.with_traceback(None))
    return replies
