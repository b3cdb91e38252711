"""An episode as a moving picture, WebP or GIF: pillow writes both, no codec is needed."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_FRAMES = 1000
MAX_SIDE = 720
"""Pixels: larger frames are made smaller."""
_MAX_BYTES = 192 * 1024 * 1024
"""Of all frames before they are compressed."""
FORMATS = {"webp": "image/webp", "gif": "image/gif"}
_LEAST_MS = 20
"""What every browser keeps to."""


def fitted(frame: Image) -> Image:
    """Return a frame that is no larger than one of a video."""
    if max(frame.size) > MAX_SIDE:
        frame = frame.copy()
        frame.thumbnail((MAX_SIDE, MAX_SIDE))
    return frame


def chosen(number: int, frame: Image) -> range:
    """Return the steps that become frames: all, or of a long episode every so many.

    Args:
        number: of steps.
        frame: the first one, whose size tells how many fit into memory.
    """
    fitting = max(1, min(MAX_FRAMES, _MAX_BYTES // (frame.width * frame.height * 3)))
    return range(0, number, max(1, -(-number // fitting)))


def encode(frames: Sequence[Image], kind: str, frames_per_s: float) -> bytes:
    """Return a file of frames, one or more.

    Args:
        frames: of any sizes; the first one's counts.
        kind: of `FORMATS`.
        frames_per_s: 1 to 50.
    """
    size = frames[0].size
    equal = [frame if frame.size == size else frame.resize(size) for frame in frames]
    if kind == "gif":
        equal = [_in_few_colours(frame) for frame in equal]
    file = io.BytesIO()
    equal[0].save(
        file,
        kind.upper(),
        save_all=True,
        append_images=equal[1:],
        duration=max(_LEAST_MS, round(1000 / frames_per_s)),
        loop=0,
        **({"quality": 80, "method": 0} if kind == "webp" else {"optimize": False}),
    )
    return file.getvalue()


def _in_few_colours(frame: Image) -> Image:
    """Return a frame in 256 colours; pillow's own choice of them takes six times as long."""
    from PIL import Image

    few = Image.Quantize.FASTOCTREE
    return frame.convert("RGB").quantize(256, method=few, dither=Image.Dither.NONE)
