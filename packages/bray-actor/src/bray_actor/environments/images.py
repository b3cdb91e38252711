"""Images as networks see them: smaller, grey, several at once."""

from __future__ import annotations

from collections import deque
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from bray_actor.environments.outcomes import check_observation
from bray_core.errors import ConfigError

_GREY = np.array([0.299, 0.587, 0.114], np.float32)
"""Weights of red, green and blue (ITU-R BT.601)."""
_REMEDY = (
    "leave resize, grey and frame_stack away, or pick the image in a wrapper "
    "(gymnasium.ObservationWrapper)"
)


class ImagePreprocessing(gymnasium.Wrapper[Any, Any, Any, Any]):  # type: ignore[misc]
    """Observations uint8 `[stack × channels, H, W]` of an environment that shows one image.

    Each pixel of a resized image is the mean of the area that it stands for. An episode begins with
    its first image, `stack` times.

    Args:
        env: Environment of images uint8 `[H, W]`, `[H, W, 1 or 3]` or `[1 or 3, H, W]`.
        resize: Height and width; None leaves them.
        grey: Whether colours become grey.
        stack: Number of newest images in an observation.

    Raises:
        ConfigError: the environment shows something else.
    """

    def __init__(self, env: Any, *, resize: int | None, grey: bool, stack: int) -> None:
        super().__init__(env)
        space = env.observation_space
        self._channels_at = _channels_at(space)
        height, width, channels = _size(space.shape, self._channels_at)
        self._grey = grey and channels == 3
        self._rows: Any = None if resize is None else _area_weights(height, resize)
        self._columns: Any = None if resize is None else _area_weights(width, resize).T.copy()
        shown = 1 if self._grey else channels
        size = (height, width) if resize is None else (resize, resize)
        self._frames: deque[npt.NDArray[np.uint8]] = deque(maxlen=stack)
        self.observation_space = spaces.Box(0, 255, (stack * shown, *size), np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._frames.extend([self._frame(observation)] * (self._frames.maxlen or 1))
        return np.concatenate(self._frames), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take an action."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._frames.append(self._frame(observation))
        return np.concatenate(self._frames), reward, terminated, truncated, info

    def _frame(self, image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return an image as `[C, H, W]`.

        Raises:
            SpecError: it is none of the space, such as shares of 0 to 1, which would become black.
        """
        check_observation(self.env.observation_space, image, "observation")
        if self._channels_at is None:
            image = image[None]
        elif self._channels_at == 2:
            image = image.transpose(2, 0, 1)
        if not self._grey and self._rows is None:
            return np.array(image, order="C")  # the environment may write the next into this one
        numbers: Any = image.astype(np.float32)
        if self._grey:
            numbers = np.tensordot(_GREY, numbers, 1)[None]
        if self._rows is not None:
            numbers = self._rows @ numbers @ self._columns
        whole: npt.NDArray[np.uint8] = np.rint(numbers).astype(np.uint8)
        return whole


def _channels_at(space: Any) -> int | None:
    """Return the dimension of the channels; None of an image that has none."""
    if isinstance(space, spaces.Box) and space.dtype == np.uint8:
        if len(space.shape) == 2:
            return None
        if len(space.shape) == 3:
            for at in (2, 0):
                if space.shape[at] in (1, 3):
                    return at
    raise ConfigError(
        "resize, grey, frame_stack: expected an observation that is one image, uint8 [H, W], "
        f"[H, W, 1 or 3] or [1 or 3, H, W], got {space}: {_REMEDY}"
    )


def _size(shape: tuple[int, ...], channels_at: int | None) -> tuple[int, int, int]:
    if channels_at is None:
        return shape[0], shape[1], 1
    if channels_at == 2:
        return shape[0], shape[1], shape[2]
    return shape[1], shape[2], shape[0]


def _area_weights(old: int, new: int) -> npt.NDArray[np.float32]:
    """Return `[new, old]`: the share that each old pixel has in the area of each new one."""
    edges = np.arange(new + 1) * (old / new)
    at = np.arange(old)
    overlap = np.minimum(edges[1:, None], at + 1) - np.maximum(edges[:-1, None], at)
    weights = np.clip(overlap, 0.0, None)
    shares: npt.NDArray[np.float32] = (weights / weights.sum(1, keepdims=True)).astype(np.float32)
    return shares
