"""Listeners of completions: those that look for stop strings, and those that stream."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Sequence

from bray_core.errors import ClosedError
from bray_model.text.detokenizer import Detokenizer
from bray_model.text.engine import TextEngine, Ticket
from bray_model.text.requests import Completion, Sampling, TextPiece, TextRequest, Token

Decode = Callable[[Sequence[int]], str]


class StopListener:
    """Ends a completion at one of its stop strings.

    Args:
        decode: Gives the text of ids.
        sampling: What the request asks for.
    """

    def __init__(self, decode: Decode, sampling: Sampling) -> None:
        self._decode = decode
        self._sampling = sampling
        self._detokenizer = Detokenizer(decode, sampling.stop)

    def on_token(self, token: Token) -> bool:
        """Return whether the text has a stop string."""
        self._detokenizer.add(token.id)
        return self._detokenizer.stopped

    def on_restart(self) -> bool:
        """Begin anew."""
        self._detokenizer = Detokenizer(self._decode, self._sampling.stop)
        return True

    def on_finish(self, completion: Completion) -> None:
        """Nothing to do: who waits looks at the completion."""


class WholeListener(StopListener):
    """Tells the running event loop that a completion is whole: until then it can begin anew.

    Args:
        decode: Gives the text of ids.
        sampling: What the request asks for.
    """

    def __init__(self, decode: Decode, sampling: Sampling) -> None:
        super().__init__(decode, sampling)
        self._loop = asyncio.get_running_loop()
        self._is_whole = asyncio.Event()

    def on_token(self, token: Token) -> bool:
        """Return whether the text has a stop string."""
        return bool(self._sampling.stop) and super().on_token(token)

    def on_finish(self, completion: Completion) -> None:
        """Wake up who waits."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._is_whole.set)

    async def finished(self) -> None:
        """Wait for the completion, which the ticket has then."""
        await self._is_whole.wait()


class AsyncListener:
    """Hands pieces of a completion to an event loop.

    Args:
        loop: The loop of the coroutine that reads `queue`.
        decode: Gives the text of ids.
        sampling: What the request asks for.
        ends: Says whether a token ends a request, so that it is no part of the text.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        decode: Decode,
        sampling: Sampling,
        ends: Callable[[TextRequest, int], bool],
    ) -> None:
        self.queue: asyncio.Queue[TextPiece | Completion] = asyncio.Queue()
        """Pieces, and the completion last."""
        self._loop = loop
        self._detokenizer = Detokenizer(decode, sampling.stop)
        self._request = TextRequest((0,), sampling)
        self._ends = ends

    def on_token(self, token: Token) -> bool:
        """Hand a token and the text that is certain over; True at a stop string."""
        text = "" if self._ends(self._request, token.id) else self._detokenizer.add(token.id)
        self._hand_over(TextPiece(text, (token,)))
        return self._detokenizer.stopped

    def on_restart(self) -> bool:
        """Go on: what was handed over cannot be taken back."""
        return False

    def on_finish(self, completion: Completion) -> None:
        """Hand the rest of the text over, then the completion."""
        rest = self._detokenizer.finish()
        if rest:
            self._hand_over(TextPiece(rest, ()))
        self._hand_over(dataclasses.replace(completion, text=self._detokenizer.text))

    async def finished(self) -> None:
        """Wait for the completion, which nobody reads any more."""
        while not isinstance(await self.queue.get(), Completion):
            pass

    def _hand_over(self, item: TextPiece | Completion) -> None:
        try:
            self._loop.call_soon_threadsafe(self.queue.put_nowait, item)
        except RuntimeError:
            return  # the loop is closed: nobody reads any more


async def leave(
    engine: TextEngine, ticket: Ticket, listener: AsyncListener | WholeListener
) -> None:
    """Cancel a request if it is under way, and wait for its end."""
    if ticket.completion is None:
        with contextlib.suppress(ClosedError):  # closing tells the listener, too
            engine.cancel(ticket, wait=False)
        await listener.finished()  # the loop goes on during the step at hand
