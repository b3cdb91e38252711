"""An episode as a video, WebP or GIF: pillow writes both without a codec."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_FRAMES = 1000
MAX_SIDE = 720
"""Greatest width and height of a frame, in pixels."""
_MAX_BYTES = 192 * 1024 * 1024
"""Memory of all frames before they are compressed."""
FORMATS = {"webp": "image/webp", "gif": "image/gif"}
MOST_PIXELS = {"webp": 16_383, "gif": 65_535}
"""Greatest width and height that each format can say."""
_MAX_COLOURS = 256
_LEAST_MS = 20
"""Shortest time of a frame that every browser keeps to."""


def scaled_down(frame: Image) -> Image:
    """Return a frame that is no larger than `MAX_SIDE` in either direction."""
    if max(frame.size) > MAX_SIDE:
        frame = frame.copy()
        frame.thumbnail((MAX_SIDE, MAX_SIDE))
    return frame


def frame_steps(number: int, frame: Image) -> range:
    """Return the steps that become frames: all, or evenly spaced ones of a long episode.

    Args:
        number: number of steps of the episode.
        frame: the first frame, whose size tells how many fit into memory.
    """
    fitting = max(1, min(MAX_FRAMES, _MAX_BYTES // (frame.width * frame.height * 3)))
    return range(0, number, max(1, -(-number // fitting)))


def encode(frames: Sequence[Image], kind: str, frames_per_s: float) -> bytes:
    """Return a file of frames, one or more.

    Args:
        frames: images of any sizes; all get the size of the first one.
        kind: one of `FORMATS`.
        frames_per_s: speed, 1 to 50.
    """
    size = frames[0].size
    # A video has one size; a render function may return another with each step.
    equal = [frame if frame.size == size else frame.resize(size) for frame in frames]
    if kind == "gif":
        palette = _Palette()
        equal = [palette.apply(frame) or _in_few_colours(frame) for frame in equal]
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


class _Palette:
    """The colours of drawn frames, which mostly have few: they stay exact, for a fifth of the time.

    A frame whose colours do not fit beside those of the frames before gets a choice of its own.
    """

    def __init__(self) -> None:
        # The number of each colour by its 24 bits; -1: not met yet.
        self._numbers: npt.NDArray[np.int16] = np.full(2**24, -1, np.int16)
        self._colours: list[int] = []
        self._is_full = False

    def apply(self, frame: Image) -> Image | None:
        """Return a frame by its colours' numbers; None if there are more than 256."""
        from PIL import Image

        if self._is_full:  # a photograph will not have fewer colours the next time
            return None
        pixels = np.asarray(frame.convert("RGBA")).view("<u4")[..., 0] & 0xFFFFFF
        numbers = self._numbers.take(pixels)
        if numbers.min() < 0:
            self._is_full = not self._add(np.unique(pixels[numbers < 0]).tolist())
            if self._is_full:
                return None
            numbers = self._numbers.take(pixels)
        image = Image.fromarray(numbers.astype(np.uint8), "P")
        colours = np.array(self._colours, "<u4").view(np.uint8).reshape(-1, 4)[:, :3]
        image.putpalette(colours.tobytes())
        return image

    def _add(self, colours: list[int]) -> bool:
        """Give new colours numbers; False if there are too many."""
        if len(self._colours) + len(colours) > _MAX_COLOURS:
            return False
        self._numbers[colours] = range(len(self._colours), len(self._colours) + len(colours))
        self._colours += colours
        return True


def _in_few_colours(frame: Image) -> Image:
    """Return a frame in 256 colours; pillow's own choice of them takes six times as long."""
    from PIL import Image

    few = Image.Quantize.FASTOCTREE
    return frame.convert("RGB").quantize(256, method=few, dither=Image.Dither.NONE)
