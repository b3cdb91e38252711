"""Text of a completion while its tokens come, with stop strings found across tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_REPLACEMENT = "\ufffd"
_MOST_PENDING = 16
"""Tokens after which an incomplete character is taken for a broken one."""


class Detokenizer:
    """Turns tokens into text, a piece at a time.

    A tokenizer may spell one character with several tokens, and write a token differently after
    another one. So a few tokens before the new ones are decoded with them, and what ends in an
    incomplete character waits.

    Args:
        decode: Gives the text of ids.
        stop: Strings that end the text.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stop: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stop = tuple(stop)
        self._longest_stop = max(map(len, self._stop), default=0)
        self._ids: list[int] = []
        self._begin = 0
        """Tokens from here on are decoded for context."""
        self._read = 0
        """Tokens before here are in the text."""
        self._text = ""
        self._sent = 0
        """Characters that were given out."""
        self.stopped = False
        """Whether a stop string was found."""

    def add(self, token: int) -> str:
        """Take a token and return the text that is certain now."""
        self._ids.append(token)
        before = self._decode(self._ids[self._begin : self._read])
        after = self._decode(self._ids[self._begin :])
        pending = len(self._ids) - self._read
        if len(after) > len(before) and (
            not after.endswith(_REPLACEMENT) or pending >= _MOST_PENDING
        ):
            self._extend(after[len(before) :])
            self._begin, self._read = self._read, len(self._ids)
        elif after == before and pending >= _MOST_PENDING:
            del self._ids[self._read :]  # special tokens: they have no text, whatever follows
        return self._take(len(self._text) - self._held())

    def finish(self) -> str:
        """Return the text that was held back."""
        if not self.stopped and self._read < len(self._ids):
            before = self._decode(self._ids[self._begin : self._read])
            after = self._decode(self._ids[self._begin :])
            self._extend(after[len(before) :])
            self._read = len(self._ids)
        return self._take(len(self._text))

    @property
    def text(self) -> str:
        """The text so far, up to a stop string."""
        return self._text

    def _extend(self, new: str) -> None:
        if self.stopped or not new:
            return
        start = max(0, len(self._text) - self._longest_stop + 1)
        self._text += new
        found = [at for at in (self._text.find(one, start) for one in self._stop) if at >= 0]
        if found:
            self._text = self._text[: min(found)]
            self.stopped = True

    def _held(self) -> int:
        """Return how many of the last characters may be the beginning of a stop string."""
        if self.stopped:
            return 0
        for count in range(min(self._longest_stop - 1, len(self._text)), 0, -1):
            tail = self._text[-count:]
            if any(one.startswith(tail) for one in self._stop):
                return count
        return 0

    def _take(self, end: int) -> str:
        new = self._text[self._sent : end]
        self._sent = max(self._sent, end)
        return new


def until_stop(text: str, stop: Sequence[str]) -> str:
    """Return a text up to the first of its stop strings."""
    found = [at for at in map(text.find, stop) if at >= 0]
    return text[: min(found)] if found else text
