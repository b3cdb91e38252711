"""Text of others on its way to a log or a terminal."""

from __future__ import annotations


def printable(text: str, most: int = 1_000) -> str:
    r"""Return text that is one line and moves no cursor: what does not print is escaped.

    Args:
        text: what came, such as a session's id or a message of another program.
        most: characters; what is longer is cut.

    Examples:
        >>> printable("säule"), printable("a\nerror: forged \x1b[2J")
        ('säule', 'a\\nerror: forged \\x1b[2J')
    """
    if len(text) > most:
        text = f"{text[:most]}..."
    if text.isprintable():
        return text
    return "".join(map(_escaped, text))


def printable_lines(text: str) -> str:
    """Return text as `printable` does, but whole and with its line breaks and tabs."""
    lines = (part.split("\t") for part in text.split("\n"))
    return "\n".join("\t".join(printable(part, len(part)) for part in line) for line in lines)


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape", "surrogatepass").decode()
