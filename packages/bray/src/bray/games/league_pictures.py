"""Pictures of a league as RGB arrays `[H, W, 3]` of uint8 and as PNG, with numpy alone.

Row 0 is on top. Players stand in the order of the arrays given: in `heat_map` from top to bottom
and from left to right, in `curve` from left to right.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
import numpy.typing as npt

Picture = npt.NDArray[np.uint8]

_COLOURS = np.array([[178, 24, 43], [247, 247, 247], [33, 102, 172]], np.float64)
"""Of the win rates 0, 0.5 and 1: red, white, blue, told apart by the colour-blind, too."""
_BAND, _LINE, _GRID, _INK = (198, 219, 239), (8, 69, 148), (225, 225, 225), (60, 60, 60)
_MARGIN = 44
_DIGITS = {
    "0": "111101101101111",
    "1": "010010010010010",
    "2": "111001111100111",
    "3": "111001111001111",
    "4": "101101111001001",
    "5": "111100111001111",
    "6": "111100111101111",
    "7": "111001001001001",
    "8": "111101111101111",
    "9": "111101111001111",
    "-": "000000111000000",
    ".": "000000000000010",
}
"""Glyphs of 3 × 5 pixels, row by row."""


def heat_map(matrix: npt.ArrayLike, *, size: int = 400) -> Picture:
    """Return win rates as colours: red the row's player loses, white even, blue it wins.

    Args:
        matrix: `[N, N]`, 0 to 1, such as `PayoffTable.matrix()`; NaN is grey.
        size: of the coloured square in pixels, about: a cell has whole pixels, one at least.

    Raises:
        ValueError: not `[N, N]`, or a rate out of range.
    """
    rates = np.asarray(matrix, np.float64)
    if rates.ndim != 2 or rates.shape[0] != rates.shape[1] or not rates.size:
        raise ValueError(f"matrix: expected [N, N], got shape {rates.shape}")
    if (rates < 0).any() or (rates > 1).any():
        raise ValueError(f"matrix: expected 0 to 1, got {np.nanmin(rates)} to {np.nanmax(rates)}")
    cell = max(1, size // len(rates))
    cells = colours(rates).repeat(cell, 0).repeat(cell, 1)
    picture = _paper(*cells.shape[:2])
    picture[_MARGIN:-_MARGIN, _MARGIN:-_MARGIN] = cells
    for player in _ticks(0, len(rates) - 1):
        at = _MARGIN + round((player + 0.5) * cell)
        _write(picture, str(round(player)), at - 3, _MARGIN - 14)
        _write(picture, str(round(player)), _MARGIN - 28, at - 5)
    return picture


def colours(rates: npt.NDArray[np.float64]) -> Picture:
    """Return the colour of each win rate, `[…]` → `[…, 3]`."""
    known = np.nan_to_num(rates, nan=0.5)
    channels = [np.interp(known, [0, 0.5, 1], _COLOURS[:, c]) for c in range(3)]
    picture = np.stack(channels, -1).round().astype(np.uint8)
    picture[np.isnan(rates)] = 160
    return picture


def curve(
    middle: npt.ArrayLike,
    lower: npt.ArrayLike,
    upper: npt.ArrayLike,
    *,
    width: int = 560,
    height: int = 300,
) -> Picture:
    """Return a line with its interval as a band around it, numbers at the axes.

    Args:
        middle: `[N]`, such as ratings, oldest version first; x is the index.
        lower: of the interval, `[N]`.
        upper: likewise.
        width: of the plot in pixels.
        height: likewise.

    Raises:
        ValueError: not finite columns of one length.
    """
    columns = [np.asarray(column, np.float64) for column in (lower, middle, upper)]
    shapes = [column.shape for column in columns]
    if len(shapes[0]) != 1 or not columns[0].size or len(set(shapes)) != 1:
        raise ValueError(f"middle, lower, upper: expected [N] each, got {shapes}")
    if not all(np.isfinite(column).all() for column in columns):
        raise ValueError("middle, lower, upper: expected finite numbers, got others")
    low, high = columns[0].min(), columns[2].max()
    spread = max(high - low, 1e-9)
    plot = np.full((height, width, 3), 255, np.uint8)
    picture = _paper(height, width)
    for level in _ticks(low, high):
        row = round((high - level) / spread * (height - 1))
        plot[row] = _GRID
        _write(picture, f"{level:g}", 4, _MARGIN + row - 5)
    last = len(columns[0]) - 1
    at = np.linspace(0, last, width)
    rows = [(high - np.interp(at, range(last + 1), c)) / spread * (height - 1) for c in columns]
    _fill(plot, rows[2], rows[0], _BAND)
    steps = np.abs(np.diff(rows[1], prepend=rows[1][0]))  # steep parts stay joined
    _fill(plot, rows[1] - steps / 2 - 1, rows[1] + steps / 2 + 1, _LINE)
    picture[_MARGIN:-_MARGIN, _MARGIN:-_MARGIN] = plot
    for player in _ticks(0, last):
        column = _MARGIN + round(player / max(last, 1) * (width - 1))
        _write(picture, str(round(player)), column - 3, _MARGIN + height + 6)
    return picture


def png(picture: Picture) -> bytes:
    """Return a picture as the bytes of a PNG file (ISO/IEC 15948, colour type 2).

    Raises:
        ValueError: not `[H, W, 3]` of uint8.
    """
    if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
        raise ValueError(f"picture: expected uint8 [H, W, 3], got {picture.dtype} {picture.shape}")
    height, width, _ = picture.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), picture.reshape(height, -1)], 1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(lines.tobytes())
    parts = ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, body) for kind, body in parts)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _paper(height: int, width: int) -> Picture:
    return np.full((height + 2 * _MARGIN, width + 2 * _MARGIN, 3), 255, np.uint8)


def _ticks(low: float, high: float) -> list[float]:
    """Return up to seven round numbers from low to high."""
    rough = max(high - low, 1e-9) / 6
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= rough * (1 - 1e-9))
    if low == int(low) and high == int(high):
        step = max(step, 1.0)
    return [float(k * step) for k in range(int(np.ceil(low / step)), int(high // step) + 1)]


def _fill(plot: Picture, top: npt.NDArray[np.float64], bottom: npt.NDArray[np.float64],
          colour: tuple[int, int, int]) -> None:  # fmt: skip
    """Colour, in each column, the rows from top to bottom, `[W]` each."""
    rows = np.arange(len(plot))[:, None]
    plot[(rows >= np.floor(top)) & (rows <= np.ceil(bottom))] = colour


def _write(picture: Picture, text: str, x: int, y: int) -> None:
    """Write digits of 6 × 10 pixels; what has no glyph or no room is left out."""
    for index, sign in enumerate(text):
        left = x + 8 * index
        if sign in _DIGITS and 0 <= left <= picture.shape[1] - 6 and 0 <= y <= len(picture) - 10:
            glyph = np.array(list(_DIGITS[sign])).reshape(5, 3).repeat(2, 0).repeat(2, 1) == "1"
            picture[y : y + 10, left : left + 6][glyph] = _INK
