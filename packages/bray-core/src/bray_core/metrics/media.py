"""Pictures, videos and texts on their way to a sink of metrics."""

from __future__ import annotations

import math
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from bray_core.errors import ConfigError

MAX_BYTES = 16 * 2**20
"""Largest picture, video or text."""

_Side = Annotated[int, msgspec.Meta(ge=1, le=2**16)]


class Media(msgspec.Struct):
    """A text, or pictures of one size: one is an image, several are a video."""

    name: Annotated[str, msgspec.Meta(max_length=500)]
    text: str | None = None
    pixels: bytes = b""
    shape: tuple[_Side, _Side, _Side, _Side] | None = None
    """Shape `[T, H, W, C]` of the pixels."""
    frames_per_s: float = 30.0

    def __post_init__(self) -> None:
        if not 0 < self.frames_per_s <= 1000:
            raise ConfigError(
                f"frames_per_s: expected more than 0, 1000 at most, got {self.frames_per_s}"
            )
        size = math.prod(self.shape) if self.shape is not None else 0
        if size != len(self.pixels) or (self.shape is None) == (self.text is None):
            raise ConfigError(f"pixels: expected {size} bytes of {self.shape} or a text")

    @property
    def frames(self) -> npt.NDArray[np.uint8]:
        """The pixels `[T, H, W, C]`; a text has none."""
        return np.frombuffer(self.pixels, np.uint8).reshape(self.shape or (0, 0, 0, 0))

    @classmethod
    def from_content(cls, name: str, content: Any, frames_per_s: float) -> Media:
        """Return a text, an image `[H, W]` or `[H, W, C]`, or a video `[T, H, W, C]`.

        Raises:
            ConfigError: The content is none of these, or larger than `MAX_BYTES`.
        """
        if isinstance(content, str):
            if len(content) > MAX_BYTES:
                raise ConfigError(f"content: expected {MAX_BYTES} characters at most")
            return cls(name, text=content)
        pixels = np.asarray(content)
        if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3, 4) or not pixels.size:
            raise ConfigError(
                "content: expected a text or uint8 pixels [H, W], [H, W, C] or [T, H, W, C], "
                f"got {pixels.dtype} {pixels.shape}"
            )
        height_at = 1 if pixels.ndim == 4 else 0
        channels = pixels.shape[3] if pixels.ndim == 4 else (*pixels.shape, 1)[2]
        if channels not in (1, 3, 4):
            raise ConfigError(f"content: expected 1, 3 or 4 channels, got {pixels.shape}")
        if pixels.nbytes > MAX_BYTES:
            raise ConfigError(f"content: expected {MAX_BYTES} bytes at most, got {pixels.nbytes}")
        num = pixels.shape[0] if height_at else 1
        shape = (num, pixels.shape[height_at], pixels.shape[height_at + 1], channels)
        return cls(name, pixels=pixels.tobytes(), shape=shape, frames_per_s=frames_per_s)
