"""What a game looks like, position by position: frames of a video, or text."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bray.trained.watching import Pixels, check_video_file, pixels_of, write_video
from bray.viewer.text_picture import image_of
from bray.viewer.video import MAX_FRAMES
from bray_core.errors import ConfigError

_FRAMES_PER_S = {"image": 15.0, "text": 1.0}


class Drawing:
    """Takes the positions of games, and writes them.

    Args:
        save: file of the video; None: see `default`.
        default: file of the video of games that are drawn, where nobody said one; games that are
            written are told as text instead.
        say: takes a position as text.

    Raises:
        ConfigError: the file is of no known kind, or cannot be written.
    """

    def __init__(self, save: Path | None, default: Path, say: Callable[[str], Any]) -> None:
        self._file = default if save is None else save
        self._says_text = save is None
        self._say = say
        self._frames: list[Pixels] = []
        self._kind = "image"
        if save is not None:
            check_video_file(save)

    def add(self, environment: Any) -> Pixels | str:
        """Add a game's position; return what the environment draws.

        Raises:
            ConfigError: the game draws nothing.
        """
        found = drawn(environment)
        if found is None:
            raise ConfigError(
                "environment: it draws nothing: expected `render()` to return an image [H, W, 3] "
                "or text"
            )
        if isinstance(found, str):
            self._kind = "text"
            if self._says_text:
                self._say(found)
                return found
        if len(self._frames) < MAX_FRAMES:
            self._frames.append(image_of(found) if isinstance(found, str) else found)
        return found

    def finish(self) -> None:
        """Write the video, if there are frames."""
        if self._frames:
            write_video(self._file, self._frames, _FRAMES_PER_S[self._kind])
            sys.stderr.write(f"wrote {self._file}: {len(self._frames)} frames\n")


def drawn(environment: Any) -> Pixels | str | None:
    """Return what an environment draws: an image, or text; None: nothing."""
    render = getattr(environment, "render", None)
    found = None if render is None else render()
    if found is None or isinstance(found, str):
        return found or None
    return pixels_of(found)
