"""Text as a picture: boards are drawn as such, other text in letters of one width."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_MARGIN = 12
"""Pixels around the text."""
_FONT_SIZE = 20
_MAX_CHARS, _MAX_LINES, _MAX_COLUMNS = 8000, 80, 160
_EMPTY = ".-_ "
_FIRST, _SECOND = "xXbB#@*", "oOwW0"
"""Signs of the stones of two players."""
_BOARD, _LINE, _STONES = (246, 236, 214), (120, 100, 70), ((31, 58, 110), (196, 62, 48))
_MOST_CELLS = 26
_BOARD_SIDE = 400
"""Greatest height and width of a board, in pixels."""


def image_of(text: str) -> npt.NDArray[np.uint8]:
    """Return text as an image `[H, W, 3]`; very long text is cut.

    Rows of equally many single signs, of which each is an empty place or one of two players'
    stones, are a board.
    """
    rows = board_in(text)
    return _board(rows) if rows else _letters(text)


def board_in(text: str) -> list[str]:
    """Return the rows of a board that a text is, one sign for each place; none if it is no board.

    Signs may have spaces between them.
    """
    lines = [line.rstrip("\r") for line in text[:_MAX_CHARS].splitlines() if line.strip()]
    rows = [_signs(line) for line in lines]
    is_square = 2 <= len(rows) <= _MOST_CELLS and len({len(row) for row in rows}) == 1
    if not is_square or not 2 <= len(rows[0]) <= _MOST_CELLS:
        return []
    return rows if set("".join(rows)) <= set(_EMPTY + _FIRST + _SECOND) else []


def _signs(line: str) -> str:
    words = line.split()
    return "".join(words) if len(words) > 1 and all(len(word) == 1 for word in words) else line


def _board(rows: list[str]) -> npt.NDArray[np.uint8]:
    from PIL import Image, ImageDraw

    cell = max(14, min(64, _BOARD_SIDE // max(len(rows), len(rows[0]))))
    size = cell * len(rows[0]) + 1, cell * len(rows) + 1
    image = Image.new("RGB", size, _BOARD)
    draw = ImageDraw.Draw(image)
    for row, signs in enumerate(rows):
        for column, sign in enumerate(signs):
            left, top = column * cell, row * cell
            draw.rectangle((left, top, left + cell, top + cell), outline=_LINE)
            if sign not in _EMPTY:
                inset = cell // 7
                stone = (left + inset, top + inset, left + cell - inset, top + cell - inset)
                draw.ellipse(stone, fill=_STONES[0] if sign in _FIRST else _STONES[1])
    return np.asarray(image, np.uint8)


def _letters(text: str) -> npt.NDArray[np.uint8]:
    from PIL import Image, ImageDraw, ImageFont

    font: Any = ImageFont.load_default(_FONT_SIZE)
    cut = text[:_MAX_CHARS].expandtabs(4).splitlines()[:_MAX_LINES]
    lines = [line[:_MAX_COLUMNS] for line in cut] or [""]
    width = max(int(font.getlength("o")) + 1, 1)  # the font's letters differ in width
    height = _FONT_SIZE + 4
    size = 2 * _MARGIN + width * max(map(len, lines)), 2 * _MARGIN + height * len(lines)
    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    for row, line in enumerate(lines):
        for column, letter in enumerate(line):
            place = (_MARGIN + (column + 0.5) * width, _MARGIN + row * height)
            draw.text(place, letter, fill="black", font=font, anchor="ma")
    return np.asarray(image, np.uint8)
