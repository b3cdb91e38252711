"""Calls of tools in what a model writes: `<tool_call>{"name": ..., "arguments": ...}</tool_call>`.

It is the form of Hermes and Qwen. A call that cannot be read stays in the text as the model wrote
it, and is counted: nothing is mended that a trainer may learn from.
"""

from __future__ import annotations

import secrets
from typing import Any, NamedTuple, TypeAlias

import msgspec

OPENING, CLOSING = "<tool_call>", "</tool_call>"

ToolCallContent: TypeAlias = dict[str, Any]
"""A call as the API has it: `{"id", "type", "function": {"name", "arguments"}}`."""


class _WrittenCall(msgspec.Struct):
    name: str
    arguments: dict[str, Any] | str = {}


_DECODER = msgspec.json.Decoder(_WrittenCall)


class ScannedText(NamedTuple):
    """What is certain of a text that still grows."""

    content: str
    """Text that is no call."""
    calls: list[ToolCallContent]


class ToolCallScanner:
    """Tells calls from plain text, piece by piece.

    Text that may be the beginning of a call waits until that is certain. White space before a call,
    and before and after the whole text's calls, is not passed on: clients see the text that a
    person would read.
    """

    def __init__(self) -> None:
        self.num_unparsed = 0
        """Number of calls that could not be read and were left in the text."""
        self._waiting = ""
        self._has_calls = False
        self._has_text = False

    def feed(self, text: str) -> ScannedText:
        """Take more text."""
        self._waiting += text
        parts: list[str] = []
        calls: list[ToolCallContent] = []
        while True:
            before, opened, rest = self._waiting.partition(OPENING)
            if not opened:
                certain = len(before) - _num_uncertain(before)
                self._put(parts, before[:certain])
                self._waiting = before[certain:]
                break
            written, closed, after = rest.partition(CLOSING)
            if not closed:
                certain = len(before.rstrip())
                self._put(parts, before[:certain])
                self._waiting = self._waiting[certain:]
                break
            call = _read(written)
            if call is None:
                self.num_unparsed += 1
                self._put(parts, before + OPENING + written + CLOSING)
            else:
                self._put(parts, before.rstrip())
                calls.append(call)
                self._has_calls = True
            self._waiting = after
        return ScannedText("".join(parts), calls)

    def end(self) -> ScannedText:
        """Return what still waited, when the text is whole."""
        rest, self._waiting = self._waiting, ""
        if OPENING in rest:
            self.num_unparsed += 1
        parts: list[str] = []
        if not (self._has_calls and not rest.strip()):
            self._put(parts, rest)
        return ScannedText("".join(parts), [])

    def _put(self, parts: list[str], text: str) -> None:
        if self._has_calls and not self._has_text:
            text = text.lstrip() if not parts else text
        if text:
            self._has_text = True
            parts.append(text)


def scan(text: str) -> tuple[str, list[ToolCallContent], int]:
    """Return the content of a whole text, its calls, and the number of unreadable ones."""
    scanner = ToolCallScanner()
    content, calls = scanner.feed(text)
    return content + scanner.end().content, calls, scanner.num_unparsed


def _num_uncertain(text: str) -> int:
    """Return the characters at the end of a text that a call may begin with, and spaces before."""
    start = len(text)
    for size in range(min(len(OPENING) - 1, len(text)), 0, -1):
        if OPENING.startswith(text[-size:]):
            start -= size
            break
    return len(text) - len(text[:start].rstrip())


def _read(written: str) -> ToolCallContent | None:
    try:
        call = _DECODER.decode(written)
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
        return None
    arguments = call.arguments
    if not isinstance(arguments, str):
        arguments = msgspec.json.encode(arguments).decode()
    function = {"name": call.name, "arguments": arguments}
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}
