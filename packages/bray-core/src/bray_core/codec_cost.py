"""The cost of decoding a message, estimated from its bytes before anything is made of them.

An empty map is one byte on the wire and 73 bytes of memory; a full one of the largest messages
stops a process for half a minute. So the headers are walked first, which stops early.
"""

from __future__ import annotations

from bray_core.errors import CodecError

SMALL_BYTES = 4096
"""Size of a message up to which its cost is not looked at."""
MAX_VALUES = 65_536
"""Number of values in a message: maps, lists, keys and leaves. An array is one value."""
MAX_TEXT_BYTES = 4 * 1024 * 1024
"""Most bytes of strings longer than 31 bytes in one message: no other thread runs while
one is decoded."""
_MAX_GROWTH = 8
"""Bytes of memory per byte of a message, where it takes more than `_FREE_BYTES` in all."""
_FREE_BYTES = 4 * 1024 * 1024
_ARRAY_BYTES = 600
"""Memory of an array without its elements, which are not copied."""
_LIST_BYTES, _MAP_BYTES, _ENTRY_BYTES, _TEXT_BYTES, _NUMBER_BYTES, _SLOT_BYTES = (
    72, 136, 64, 64, 40, 8
)  # fmt: skip
_CHARACTER_BYTES = 4
"""Memory of a character: a single emoji makes all characters of its string that wide."""


def check(data: bytes | memoryview) -> None:
    """Refuse a message that would cost more than its size justifies.

    Raises:
        CodecError: Names the bound and what came.
    """
    if len(data) <= SMALL_BYTES:
        return
    values, memory_bytes, text_bytes = _count(data, MAX_VALUES)
    if values > MAX_VALUES:
        raise CodecError(
            f"expected at most {MAX_VALUES} values in a message, got more: "
            "send many numbers as one array"
        )
    if text_bytes > MAX_TEXT_BYTES:
        raise CodecError(
            f"expected at most {MAX_TEXT_BYTES} bytes of long strings in a message, "
            f"got {text_bytes}: send them as binary"
        )
    most = max(_FREE_BYTES, _MAX_GROWTH * len(data))
    if memory_bytes > most:
        raise CodecError(
            f"expected a message that takes at most {most} bytes in memory, "
            f"{_MAX_GROWTH} times its size, got about {memory_bytes}: "
            "send many numbers as one array"
        )


def has_few_values(data: bytes | memoryview, few: int) -> bool:
    """Return whether a message holds at most `few` values; looks no further than that."""
    return len(data) <= few or _count(data, few)[0] <= few


def _count(data: bytes | memoryview, most: int) -> tuple[int, int, int]:
    """Return values, memory and text of a message in bytes; stops at more than `most` values.

    The nesting is not followed: it changes none of them, and the decoder itself refuses bytes that
    are no message.
    """
    memory, steps, end = _MEMORY, _STEPS, len(data)
    at = values = total = text = 0
    while at < end and values <= most:
        head = data[at]
        values += 1
        total += memory[head]
        step = steps[head]
        if step:
            at += step
            continue
        width, skip, per_item, is_map = _VARIABLE[head]
        length = int.from_bytes(data[at + 1 : at + 1 + width], "big")
        total += per_item * length
        if per_item == _CHARACTER_BYTES:
            text += length
        at += 1 + width + skip + (0 if is_map else length)
    return values, total, text


def _tables() -> tuple[list[int], list[int], dict[int, tuple[int, int, int, bool]]]:
    """Return tables of a value's memory and length by its first byte, and of variable lengths.

    Where the length is 0 the third table says: bytes of the length, bytes that follow it, memory
    per item, and whether items are values.
    """
    memory, steps = [_SLOT_BYTES] * 256, [1] * 256
    for size in range(16):
        memory[0x80 + size] = _MAP_BYTES + _ENTRY_BYTES * size
        memory[0x90 + size] = _LIST_BYTES
    for size in range(32):
        memory[0xA0 + size] = _TEXT_BYTES + _CHARACTER_BYTES * size
        steps[0xA0 + size] = 1 + size
    for head, size in (
        (0xCA, 4),
        (0xCB, 8),
        *zip(range(0xCC, 0xD4), (1, 2, 4, 8) * 2, strict=True),
    ):
        memory[head], steps[head] = _NUMBER_BYTES, 1 + size
    for head, size in zip(range(0xD4, 0xD9), (1, 2, 4, 8, 16), strict=True):
        memory[head], steps[head] = _ARRAY_BYTES, 2 + size
    for head, size in ((0xDC, 2), (0xDD, 4)):
        memory[head], steps[head] = _LIST_BYTES, 1 + size
    variable = {}
    for index, width in enumerate((1, 2, 4)):
        variable[0xC4 + index] = (width, 0, 1, False)
        variable[0xC7 + index] = (width, 1, 0, False)
        variable[0xD9 + index] = (width, 0, _CHARACTER_BYTES, False)
        memory[0xC4 + index] = memory[0xD9 + index] = _TEXT_BYTES
        memory[0xC7 + index] = _ARRAY_BYTES
    for head, width in ((0xDE, 2), (0xDF, 4)):
        variable[head] = (width, 0, _ENTRY_BYTES, True)
        memory[head] = _MAP_BYTES
    for head in variable:
        steps[head] = 0
    return memory, steps, variable


_MEMORY, _STEPS, _VARIABLE = _tables()
