"""The bytes of tokens that are a part of a character, by the names that tokenizers give them."""

from __future__ import annotations

import re

_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_level() -> dict[str, int]:
    """Return the byte of each character in the names of byte-level tokens.

    Bytes that can be printed stand for themselves, the others for 256 and so on, in their order:
    Radford et al. 2019, "Language models are unsupervised multitask learners", has it in its code.
    """
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {
        chr(256 + number): byte for number, byte in enumerate(others)
    }


_BYTES = _byte_level()


def bytes_of(name: str, *, is_byte_level: bool) -> bytes | None:
    """Return the bytes of a token; None where its name does not tell.

    Args:
        name: Name of the token in its vocabulary, such as `<0xE4>`.
        is_byte_level: Whether each character of a name stands for a byte.
    """
    fallback = _FALLBACK.fullmatch(name)
    if fallback is not None:
        return bytes([int(fallback[1], 16)])
    if not is_byte_level or any(character not in _BYTES for character in name):
        return None
    return bytes(_BYTES[character] for character in name)
