"""JSON objects byte by byte: which bytes may follow what is written already.

A state is `(mode, count, stack)`: where in the grammar of RFC 8259 the text is, a number that the
mode counts, and the open brackets. What may be written is a little less than what may be read, so
that any parser takes it: numbers of at most 15 digits before and after the point and exponents of
two digits, no escaped surrogates, no more than 16 blanks in a row, 64 levels, and an object
outermost.
"""

from __future__ import annotations

from typing import TypeAlias

State: TypeAlias = tuple[str, int, str]
"""Mode, count and open brackets, the innermost last."""

BEGIN: State = ("begin", 0, "")
MAX_DEPTH = 64
_MOST_DIGITS = 15
_MOST_EXPONENT_DIGITS = 2
_MOST_BLANKS = 16
_BLANKS = frozenset(b" \t\n\r")
_DIGITS = frozenset(b"0123456789")
_HEXADECIMAL = frozenset(b"0123456789abcdefABCDEF")
_ESCAPES = frozenset(b'"\\/bfnrt')
_LITERALS = {ord("t"): "rue", ord("f"): "alse", ord("n"): "ull"}
_SECOND_BYTES = {"": (0x80, 0xBF), "a": (0xA0, 0xBF), "9": (0x80, 0x9F)} | {
    "0": (0x90, 0xBF),
    "f": (0x80, 0x8F),
}
"""Range of a character's second byte, by what its first byte leaves (RFC 3629)."""


class JsonGrammar:
    """The grammar, as far as an alphabet can spell it.

    Nothing is begun that could not be ended by single bytes of the alphabet: so there is always a
    way on.

    Args:
        alphabet: Bytes that can be written alone.
    """

    def __init__(self, alphabet: frozenset[int]) -> None:
        self._has_zero = ord("0") in alphabet
        self._has_lists = ord("]") in alphabet
        self._literals = {
            first: rest for first, rest in _LITERALS.items() if alphabet >= set(rest.encode())
        }

    def after(self, state: State, byte: int) -> State | None:
        """Return the state after one more byte; None: it may not follow."""
        mode, count, stack = state
        if mode[0] in "VK":  # a value's string, or a key
            return self._in_string(mode[0], mode[1:], count, stack, byte)
        if mode[0] == "#":
            return self._in_number(mode, count, stack, byte)
        if mode[0] == "=":
            if byte != ord(mode[1]):
                return None
            return (mode[:1] + mode[2:], 0, stack) if mode[2:] else ("after", 0, stack)
        if is_complete(state):
            return None
        if byte in _BLANKS:
            return (mode, count + 1, stack) if count < _MOST_BLANKS else None
        return self._at_structure(mode, stack, byte)

    def _at_structure(self, mode: str, stack: str, byte: int) -> State | None:
        character = chr(byte)
        if mode == "begin":
            return ("first", 0, "{") if character == "{" else None
        if mode == "colon":
            return ("value", 0, stack) if character == ":" else None
        if mode in ("key", "first") and character == '"':
            return ("K.", 0, stack)
        if mode in ("value", "item") and character != "]":
            return self._value(stack, byte)
        closes = {"{": "}", "[": "]"}[stack[-1]]
        if character == closes and mode in ("first", "item", "after"):
            return ("after", 0, stack[:-1])
        if character == "," and mode == "after":
            return ("key" if closes == "}" else "value", 0, stack)
        return None

    def _value(self, stack: str, byte: int) -> State | None:
        character = chr(byte)
        if character == '"':
            return ("V.", 0, stack)
        if character in "{[" and len(stack) < MAX_DEPTH:
            if character == "{":
                return ("first", 0, stack + "{")
            return ("item", 0, stack + "[") if self._has_lists else None
        if byte in self._literals:
            return ("=" + self._literals[byte], 0, stack)
        return self._in_number("#" if character == "-" else "#-", 0, stack, byte)

    def _in_number(self, mode: str, count: int, stack: str, byte: int) -> State | None:
        """Return the state after a byte in a number; the mode tells what came last."""
        if mode == "#":
            return ("#-", 0, stack) if self._has_zero else None
        if byte in _DIGITS:
            return self._digit(mode, count, stack, byte)
        if mode in ("#0", "#i", "#f") and self._has_zero:
            if byte == ord(".") and mode != "#f":
                return ("#.", 0, stack)
            if byte in b"eE":
                return ("#e", 0, stack)
        if mode == "#e" and byte in b"+-":
            return ("#s", 0, stack)
        # A number ends where something else begins, and only a whole one does.
        return self.after(("after", 0, stack), byte) if mode in ("#0", "#i", "#f", "#x") else None

    def _digit(self, mode: str, count: int, stack: str, byte: int) -> State | None:
        if mode == "#-":
            return ("#0", 0, stack) if byte == ord("0") else ("#i", 1, stack)
        if mode in ("#.", "#e", "#s"):
            return ("#f" if mode == "#." else "#x", 1, stack)
        most = {"#i": _MOST_DIGITS, "#f": _MOST_DIGITS, "#x": _MOST_EXPONENT_DIGITS}.get(mode, 0)
        return (mode, count + 1, stack) if count < most else None

    def _in_string(self, kind: str, mode: str, count: int, stack: str, byte: int) -> State | None:
        plain = (kind + ".", 0, stack)
        if mode == ".":
            if byte == ord('"'):
                return ("after" if kind == "V" else "colon", 0, stack)
            if byte == ord("\\"):
                return (kind + "\\", 0, stack)
            if byte < 0x80:
                return plain if byte >= 0x20 else None
            return _first_of_several(kind, stack, byte)
        if mode[0] == "8":
            least, most = _SECOND_BYTES[mode[1:]]
            if not least <= byte <= most:
                return None
            return (kind + "8", count - 1, stack) if count > 1 else plain
        if mode == "\\":
            if byte == ord("u"):
                return (kind + "u", 4, stack) if self._has_zero else None
            return plain if byte in _ESCAPES else None
        if byte not in _HEXADECIMAL or (mode == "d" and byte not in b"01234567"):
            return None
        if mode == "u" and count == 4 and byte in b"dD":  # \ud800 and on are halves of characters
            return (kind + "d", 3, stack)
        return (kind + "u", count - 1, stack) if count > 1 else plain


def is_complete(state: State) -> bool:
    """Return whether an object is whole, so that the text ends."""
    return state[0] == "after" and not state[2]


def is_within_string(state: State) -> bool:
    """Return whether plain text may follow, between the quotes of a string."""
    return state[0] in ("V.", "K.")


def is_in_character(state: State) -> bool:
    """Return whether bytes of a character are missing."""
    return state[0][1:2] == "8"


def _first_of_several(kind: str, stack: str, byte: int) -> State | None:
    if 0xC2 <= byte <= 0xDF:
        return (kind + "8", 1, stack)
    if 0xE0 <= byte <= 0xEF:
        return (kind + "8" + {0xE0: "a", 0xED: "9"}.get(byte, ""), 2, stack)
    if 0xF0 <= byte <= 0xF4:
        return (kind + "8" + {0xF0: "0", 0xF4: "f"}.get(byte, ""), 3, stack)
    return None
