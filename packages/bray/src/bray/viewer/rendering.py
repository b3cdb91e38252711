"""Pictures of an episode's steps, drawn by the user's render functions or from any arrays."""

from __future__ import annotations

import bisect
import io
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bray.viewer.episodes import EpisodeStep
from bray.viewer.request_bodies import leaf_paths
from bray.viewer.text_picture import image_of
from bray_core.errors import ConfigError, SpecError
from bray_core.process.user_modules import import_user_module

if TYPE_CHECKING:
    from PIL import ImageFont
    from PIL.Image import Image

RenderFunction: TypeAlias = Callable[[EpisodeStep], object]
"""Returns pixels `[H, W]` or `[H, W, C]` of uint8, a `PIL.Image.Image`, or a matplotlib figure."""
DEFAULT = "observation"

_FRAME_FORMATS = ("WEBP", "PNG", "JPEG")
_LEAST_SIDE = 8
"""Least height and width of an array, in pixels, that is shown as a picture."""
_SHOWN_SIDE = 256
_MAX_SIDE = 2048
_WIDTH = 560
_MAX_LEAVES = 24
_MAX_CELLS = 64
_MAX_CHARS = 60
_MAX_LOOKED_AT = 200
"""Number of steps whose values decide how strong the colours are."""
_PAPER, _INK, _FAINT = (246, 247, 249), (36, 41, 47), (106, 115, 125)
_NEGATIVE, _MIDDLE, _POSITIVE = (178, 24, 43), (232, 232, 235), (33, 102, 172)


def load_render(name: str) -> RenderFunction:
    """Import a render function, `module:function`; modules of the working directory are found.

    Raises:
        ConfigError: the module cannot be imported, or has no such function.
    """
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise ConfigError(f"render: expected module:function, got {name!r}")
    try:
        found: Any = import_user_module(module)
    except Exception as error:  # it is the user's code
        words = f"{type(error).__name__}: {error}"
        raise ConfigError(f"render: {module!r} cannot be imported: {words}") from error
    for part in function.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise ConfigError(f"render: module {module!r} has no function {function!r}")
    return found  # type: ignore[no-any-return]


class Painter:
    """Draws the steps of an episode, by a render function or by default.

    Args:
        render: the user's function; None draws what the environment drew, if it was recorded, else
            an image in the observation, else all numbers.
        steps: steps of the episode: a colour stands for the same number in all of them.
    """

    def __init__(self, render: RenderFunction | None, steps: Sequence[EpisodeStep]) -> None:
        self._render = render
        self.steps = steps
        self._reaches: dict[str, float] | None = None

    def image(self, index: int) -> Image:
        """Return a step's picture.

        Raises:
            SpecError: the render function returned something that is no picture; says what.
        """
        step = self.steps[index]
        if self._render is not None:
            return _image(self._render(step))
        if (frame := frame_of(step)) is not None:
            return frame
        picture = _picture_in(step)
        if picture is not None:
            return _enlarged(picture)
        if self._reaches is None:
            self._reaches = _reaches(self.steps)
        return _cells(_leaves(step), self._reaches)


def frame_of(step: EpisodeStep) -> Image | None:
    """Return what the environment itself drew, if its message holds it as `frame`.

    That is an image in WebP, PNG or JPEG, or text. One that is damaged or too large is none.
    """
    from PIL import Image

    body = step.body
    frame = body.get("frame") if isinstance(body, dict) else None
    if isinstance(frame, str):
        return Image.fromarray(image_of(frame))
    if not isinstance(frame, bytes):
        return None
    try:
        with Image.open(io.BytesIO(frame), formats=_FRAME_FORMATS) as opened:
            if max(opened.size) > _MAX_SIDE:  # its header says it: nothing is decompressed yet
                return None
            return opened.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def _picture_in(step: EpisodeStep) -> npt.NDArray[np.uint8] | None:
    """Return the first image in the observation, if there is one."""
    tree = step.body
    if isinstance(tree, dict) and "observation" in tree:
        tree = tree["observation"]
    pictures = (_as_picture(leaf) for _, leaf in leaf_paths(tree))
    return next((picture for picture in pictures if picture is not None), None)


def _leaves(step: EpisodeStep) -> dict[str, object]:
    """Return the leaves of the request and of the reply, by path."""
    return {
        path: leaf
        for tree in (step.body, step.reply)
        for path, leaf in leaf_paths(tree, _MAX_LEAVES)
    }


def _reaches(steps: Sequence[EpisodeStep]) -> dict[str, float]:
    """Return the greatest magnitude of each leaf, over at most `_MAX_LOOKED_AT` of the steps."""
    reaches: dict[str, float] = {}
    for index in range(0, len(steps), math.ceil(len(steps) / _MAX_LOOKED_AT)):
        for path, leaf in _leaves(steps[index]).items():
            grid = _grid(leaf)
            if grid is not None:
                reach = np.max(np.abs(grid), initial=0.0, where=np.isfinite(grid))
                reaches[path] = max(reaches.get(path, 0.0), float(reach))
    return reaches


def png(image: Image) -> bytes:
    """Return a picture as a PNG file."""
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)
    return file.getvalue()


def _image(drawn: object) -> Image:
    from PIL import Image

    if isinstance(drawn, Image.Image):
        image = drawn.convert("RGB")
    elif hasattr(drawn, "savefig"):
        file = io.BytesIO()
        drawn.savefig(file, format="png")
        image = Image.open(file).convert("RGB")
    else:
        pixels = np.asarray(drawn)
        image = _pixels(_as_picture(pixels) if pixels.dtype == np.uint8 else None, pixels)
    if max(image.size) > _MAX_SIDE:
        image.thumbnail((_MAX_SIDE, _MAX_SIDE))
    return image


def _pixels(picture: npt.NDArray[np.uint8] | None, given: npt.NDArray[Any]) -> Image:
    from PIL import Image

    if picture is None:
        raise SpecError(
            "render: expected uint8 [H, W] or [H, W, 1, 3 or 4], a PIL image or a figure, "
            f"got {given.dtype} {list(given.shape)}"
        )
    return Image.fromarray(picture)


def _as_picture(leaf: object) -> npt.NDArray[np.uint8] | None:
    """Return pixels `[H, W, 3]` of a leaf `[H, W]`, `[H, W, C]` or `[C, H, W]`, else None."""
    array = leaf if isinstance(leaf, np.ndarray) else None
    if array is None or array.dtype.kind not in "biuf" or array.ndim not in (2, 3):
        return None
    if array.ndim == 3:
        if array.shape[0] <= 4 < min(array.shape[1:]):  # channels or frames first
            array = array.transpose(1, 2, 0)
        if array.shape[2] not in (1, 2, 3, 4):
            return None
        array = array[..., :3] if array.shape[2] == 3 else array[..., -1]  # the newest frame
    if min(array.shape[:2]) < _LEAST_SIDE:
        return None
    # A large array is thinned before it is converted: a byte may become many.
    array = array[tuple(slice(None, None, -(-side // _MAX_SIDE)) for side in array.shape[:2])]
    if array.dtype != np.uint8:
        array = _stretched(array.astype(np.float64))
    return np.ascontiguousarray(array if array.ndim == 3 else array[..., None].repeat(3, 2))


def _stretched(array: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    """Return numbers as brightness: from 0 to 1, or from the least to the greatest if wider."""
    array = np.nan_to_num(array, posinf=0.0, neginf=0.0) / 2  # so that no difference overflows
    low, high = min(0.0, array.min()), max(0.5, array.max())
    brightness: npt.NDArray[np.uint8] = ((array - low) / (high - low) * 255).astype(np.uint8)
    return brightness


def _enlarged(picture: npt.NDArray[np.uint8]) -> Image:
    from PIL import Image

    image = Image.fromarray(picture)
    factor = _SHOWN_SIDE // max(image.size)  # a whole number, so that all pixels stay alike
    if factor > 1:
        image = image.resize(
            (image.width * factor, image.height * factor), Image.Resampling.NEAREST
        )
    if max(image.size) > _MAX_SIDE:
        image.thumbnail((_MAX_SIDE, _MAX_SIDE))
    return image


def _cells(found: dict[str, object], reaches: Mapping[str, float]) -> Image:
    """Draw a row of coloured cells for each leaf, red below zero and blue above."""
    from PIL import Image, ImageDraw

    rows = [(path, _grid(leaf)) for path, leaf in list(found.items())[:_MAX_LEAVES]]
    heights = [34 + _cell_side(grid) * len(grid) if grid is not None else 34 for _, grid in rows]
    fitting = max(1, bisect.bisect(list(itertools.accumulate(heights)), _MAX_SIDE))
    rows, heights = rows[:fitting], heights[:fitting]
    image = Image.new("RGB", (_WIDTH, max(60, sum(heights) + 12)), _PAPER)
    draw, font = ImageDraw.Draw(image), _font()
    top = 8
    for (path, grid), height in zip(rows, heights, strict=True):
        draw.text((12, top), path[:_MAX_CHARS] or "body", _INK, font)
        if grid is None:
            draw.text((150, top), _brief(found[path]), _FAINT, font)
        else:
            draw.text((150, top), _bounds(grid), _FAINT, font)
            with np.errstate(all="ignore"):
                _paste(image, grid / (reaches.get(path) or 1.0), top + 20)
        top += height
    if not rows:
        draw.text((12, 20), "nothing to draw", _FAINT, font)
    return image


@cache
def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    from PIL import ImageFont

    return ImageFont.load_default(13)


def _grid(leaf: object) -> npt.NDArray[np.float64] | None:
    """Return a leaf's numbers `[rows, columns]`, thinned to fit; None where it has no numbers."""
    if isinstance(leaf, str | bytes) or leaf is None:
        return None
    array = np.asarray(leaf)
    if array.dtype.kind not in "biuf" or not array.size:
        return None
    flat = array.reshape(-1, array.shape[-1]) if array.ndim > 1 else array.reshape(1, -1)
    # Every so many rows and columns are shown, so that at most `_MAX_CELLS` remain of each.
    rows, columns = (math.ceil(side / _MAX_CELLS) for side in flat.shape)
    return flat[::rows, ::columns].astype(np.float64)


def _cell_side(grid: npt.NDArray[np.float64]) -> int:
    return max(6, min(26, (_WIDTH - 24) // int(grid.shape[1])))


def _bounds(grid: npt.NDArray[np.float64]) -> str:
    if grid.size <= 4:
        return "  ".join(f"{value:.4g}" for value in grid.ravel())
    low = np.min(grid, initial=math.inf, where=np.isfinite(grid))
    high = np.max(grid, initial=-math.inf, where=np.isfinite(grid))
    return f"{grid.shape[0]} x {grid.shape[1]}, {low:.4g} to {high:.4g}"


def _paste(image: Image, grid: npt.NDArray[np.float64], top: int) -> None:
    """Draw a cell for each number, with a line of paper between them."""
    from PIL import Image

    side = _cell_side(grid)
    cells = _colours(grid).repeat(side, 0).repeat(side, 1)
    # The last row and column of each cell become the line between the cells.
    cells[side - 1 :: side], cells[:, side - 1 :: side] = _PAPER, _PAPER
    image.paste(Image.fromarray(cells), (12, top))


def _colours(shares: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    """Return colours `[R, C, 3]` for numbers `[R, C]`: -1 is red and 1 is blue."""
    known = np.isfinite(shares)
    weight = np.minimum(1.0, np.abs(np.where(known, shares, 0.0)))[..., None]
    end = np.where((shares > 0)[..., None], _POSITIVE, _NEGATIVE)
    colours = np.rint(_MIDDLE + (end - np.array(_MIDDLE)) * weight)
    return np.where(known[..., None], colours, 160).astype(np.uint8)  # grey: NaN or infinite


def _brief(leaf: object) -> str:
    shown = leaf[:_MAX_CHARS] if isinstance(leaf, str | bytes) else str(leaf)
    return str(shown)[:_MAX_CHARS]


def render_functions(renders: Sequence[str]) -> dict[str, RenderFunction | None]:
    """Return render functions by name: None for the default one, and the user's.

    Raises:
        ConfigError: a name is none of a function.
    """
    return {DEFAULT: None, **{name: load_render(name) for name in renders}}
