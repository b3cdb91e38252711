"""Escaping text of other programs before it reaches a log or a terminal."""

from __future__ import annotations

import re


def escape_unprintable(text: str, most: int = 1_000) -> str:
    r"""Return text on one line, its unprintable characters escaped: it moves no cursor.

    Args:
        text: Text of another program, such as a session's id or an error message.
        most: Number of characters; longer text is cut.

    Examples:
        >>> escape_unprintable("säule"), escape_unprintable("a\nerror: forged \x1b[2J")
        ('säule', 'a\\nerror: forged \\x1b[2J')
    """
    if len(text) > most:
        text = f"{text[:most]}..."
    if text.isprintable():
        return text
    return "".join(map(_escaped, text))


def escape_unprintable_lines(text: str) -> str:
    """Return text with its unprintable characters escaped, but for line breaks and tabs."""
    parts = re.split(r"([\n\t])", text)
    return "".join(p if p in "\n\t" else escape_unprintable(p, len(p)) for p in parts)


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape", "surrogatepass").decode()
