"""What generates text: the Protocol of an engine, and of those who listen to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bray_model.text.requests import Completion, TextRequest, Token


class TokenListener(Protocol):
    """Who follows one completion. Called by the thread that generates: it must not wait."""

    def on_token(self, token: Token) -> bool:
        """Take the next token; True ends the completion here, with the reason `stop`."""
        ...

    def on_restart(self) -> bool:
        """Drop the tokens so far, since new weights begin anew; False: go on instead."""
        ...

    def on_finish(self, completion: Completion) -> None:
        """Take the whole completion; its text is still empty."""
        ...


class Ticket(Protocol):
    """One submitted request."""

    @property
    def request(self) -> TextRequest:
        """The request."""
        ...

    @property
    def completion(self) -> Completion | None:
        """What came of it, without its text; None while it is under way."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class TextFigures:
    """Counts of an engine since it was made, and what it does now."""

    num_running: int
    """Requests that are being decoded."""
    num_waiting: int
    """Requests in the queue."""
    cache_bytes: int
    """Memory of the keys and values of the running requests."""
    cache_limit_bytes: int
    """What they may grow to."""
    tokens: int
    """Tokens sampled."""
    prompt_tokens: int
    """Prompt tokens computed."""
    shared_tokens: int
    """Prompt tokens taken from another request of the group instead."""
    steps: int
    """Decoding steps."""
    finished: int
    """Requests that ended, for whatever reason."""
    cancelled: int
    """Requests that were cancelled."""
    preempted: int
    """Times that a running request gave its memory up and had to be computed again."""
    restarted: int
    """Times that a running request began anew because of new weights."""


class TextEngine(Protocol):
    """Generates for many requests at once; every method may be called from any thread."""

    @property
    def version(self) -> int:
        """Version of the weights that the next token is computed with."""
        ...

    @property
    def context_length(self) -> int:
        """Largest number of tokens of prompt and completion together."""
        ...

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        ...

    def check(self, request: TextRequest) -> None:
        """Raise what `submit` would raise for a request."""
        ...

    def submit(
        self, requests: Sequence[TextRequest], listeners: Sequence[TokenListener | None] = ()
    ) -> list[Ticket]:
        """Queue requests, all of them or none.

        Args:
            requests: What to generate.
            listeners: One for each request; empty: nobody listens.

        Raises:
            PromptTooLongError: A prompt leaves no room in the context for a token.
            SpecError: A token id is beyond the vocabulary.
            CapacityError: The queue is full.
            ClosedError: The engine was closed.
        """
        ...

    def cancel(self, ticket: Ticket, *, wait: bool = True) -> None:
        """End a request now; its place is free for another at the next step.

        Args:
            ticket: The request.
            wait: Whether to wait until it has ended, for the step at hand. Who does not, for
                instance an event loop, is told by the listener. It needs `start`.

        Raises:
            ClosedError: The engine was closed, which has ended the request.
        """
        ...

    def wait(self, tickets: Sequence[Ticket], timeout_s: float | None = None) -> None:
        """Wait until the requests are done; generates in this thread unless `start` was called.

        Raises:
            DeadlineError: They took longer; they go on.
            ClosedError: The engine was closed meanwhile.
        """
        ...

    def start(self) -> None:
        """Generate in a thread of its own from now on."""
        ...

    def publish(self, weights: Mapping[str, Any], version: int) -> None:
        """Take new weights, by the names of the module's `state_dict`; they are copied.

        Raises:
            SpecError: A name, a shape or a number is wrong; the old weights stay.
        """
        ...

    def weights(self) -> Mapping[str, Any]:
        """Return the current weights by name, not to be written to."""
        ...

    def figures(self) -> TextFigures:
        """Return counts."""
        ...

    def close(self) -> None:
        """End what is under way, and let the memory go."""
        ...
