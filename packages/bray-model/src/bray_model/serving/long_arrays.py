"""Long arrays of numbers in a JSON message, found without parsing them.

A parser holds Python's interpreter lock until it has seen the last byte, so that 16 MiB stand all
other requests still. What is long in a proper message are the numbers of its tensors, between whose
brackets there is no quotation mark: they are cut out, for `json_tensors` to check and read piece by
piece, and the parser sees the rest.
"""

from __future__ import annotations

import secrets

from bray_core.errors import SpecError

_LONG_BYTES = 8192
_KEY = b'"data"'
_MARK = secrets.token_hex(8).encode()
"""Begins the text that stands where an array was cut out; clients cannot know it."""


class LongArrays:
    """A message without the long arrays that are values of the key `data`.

    Args:
        body: Holds the message in its first `size` bytes.
        size: Number of bytes of the message.

    Raises:
        SpecError: something else is long, or such a value is no array.
    """

    def __init__(self, body: bytes, size: int) -> None:
        self._body = body
        self._arrays: dict[bytes, tuple[int, int]] = {}
        view = memoryview(body)
        parts: list[bytes | memoryview] = []
        start = at = 0
        while size - at > _LONG_BYTES:
            stop = body.find(b'"', at, size)
            stop = size if stop < 0 else stop
            if stop - at > _LONG_BYTES:
                array = _array(body, at, stop)
                mark = b'"%b %d"' % (_MARK, len(self._arrays))
                self._arrays[mark] = array
                parts += [view[start : array[0]], mark]
                start = array[1]
            at = stop + 1
        parts.append(view[start:size])
        self.rest = b"".join(parts) if len(parts) > 1 else parts[0]
        """The message, with a mark in place of each array."""

    def restored(self, value: bytes) -> bytes:
        """Return the text of a value: the array where it is the mark of one."""
        if value not in self._arrays:
            return value
        start, stop = self._arrays[value]
        return self._body[start:stop]


def _array(body: bytes, start: int, stop: int) -> tuple[int, int]:
    """Return where the array lies in a stretch without quotation marks, which begins behind one.

    What is around it stays with the message; the array itself is checked when it is read.
    """
    opens = body.find(b"[", start, min(start + 100, stop))
    brace = body.find(b"}", start, stop)
    closes = body.rfind(b"]", start, stop if brace < 0 else brace)
    is_value = body.endswith(_KEY, 0, start) and body[start:opens].strip() == b":"
    if not is_value or not start <= opens < closes or stop - closes > _LONG_BYTES:
        raise SpecError(
            f"request: expected a message of the protocol in JSON: from byte {start} on, "
            f"{stop - start} bytes are no array of numbers that is the value of 'data'"
        )
    return opens, closes + 1
