"""Episodes that somebody watched, kept in their trial with frames: the viewer shows them again."""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bray.viewer.video import MAX_FRAMES
from bray_actor.recording import Episode, RecordedRequest, write_episode
from bray_core import codec
from bray_core.errors import CodecError
from bray_core.nested import Nested

logger = logging.getLogger(__name__)

_MAX_SIDE = 480
"""Greatest width and height of a frame, in pixels."""
_MAX_BYTES = 48 * 1024 * 1024
"""Size of one episode, beyond which later steps have no frame."""
_MAX_OBSERVATION_BYTES = 16 * 1024
"""Observations beyond this are left out: the frame shows more."""
_MAX_STEPS = 20_000


class PlayRecorder:
    """Takes an episode step by step and writes it as one file of the trial's `episodes/`.

    Args:
        folder: folder of the episodes.
        session: name under which it is listed.
        frames_per_s: speed of the episode, by which its steps have times.
        action_names: names of the choices, if the environment tells them.
    """

    def __init__(
        self,
        folder: Path,
        session: str,
        frames_per_s: float,
        action_names: tuple[str, ...] = (),
    ) -> None:
        self._folder = folder
        self._session = session
        self._pace_s = 1 / frames_per_s
        self._began_s = time.time()
        self._requests: list[RecordedRequest] = []
        self._bytes = self._frames = 0
        self._shown: tuple[Any, Any] = (None, None)
        names = {"action_names": list(action_names)} if action_names else {}
        self._start: dict[str, Any] = names

    def tick(
        self,
        drawn: npt.NDArray[np.uint8] | str | None,
        decision: Mapping[str, Any],
        *,
        observation: Nested = None,
        reward: float | None = None,
    ) -> None:
        """Add a step.

        Args:
            drawn: what the environment draws before the action: pixels `[H, W, 3]`, or text.
            decision: what was decided, see `decisions.described`; of several agents
                `{"agents": {name: decision}}`.
            observation: what the policy saw.
            reward: reward of the action before.
        """
        if not self._requests:
            self._add("start", self._start | self._frame(drawn), {})
        content = self._frame(drawn) | ({} if reward is None else {"reward": reward})
        if observation is not None and _is_small(observation):
            content["observation"] = observation
        self._add("tick", content, decision)

    def finish(
        self,
        drawn: npt.NDArray[np.uint8] | str | None,
        outcome: Mapping[str, Any],
        *,
        is_whole: bool = True,
    ) -> Path | None:
        """Write the episode; return its file, or None where nothing happened or can be written.

        Args:
            drawn: what the environment draws at the end.
            outcome: what the last message says, such as `reward` and `terminated`.
            is_whole: whether the episode was played to its end.
        """
        if not self._requests:
            return None
        self._add("end", self._frame(drawn) | dict(outcome), {})
        is_whole = is_whole and len(self._requests) <= _MAX_STEPS
        requests = tuple(self._requests)
        episode = Episode(self._session, self._began_s, "end", is_whole, requests)
        try:
            return write_episode(self._folder, episode)
        except OSError as error:  # of a trial of somebody else, which is watched all the same
            logger.warning("the episode is not kept in %s: %s", self._folder, error.strerror)
            return None

    def _add(self, kind: str, content: Mapping[str, Any], reply: Mapping[str, Any]) -> None:
        if len(self._requests) > _MAX_STEPS and kind != "end":
            return
        body = _encoded(content)
        self._bytes += len(body)
        at_s = max(0, len(self._requests) - 1) * self._pace_s
        self._requests.append(RecordedRequest(kind, at_s, body, _encoded(reply)))

    def _frame(self, drawn: npt.NDArray[np.uint8] | str | None) -> dict[str, Any]:
        if drawn is None or self._frames >= MAX_FRAMES or self._bytes > _MAX_BYTES:
            return {}
        self._frames += 1
        if drawn is not self._shown[0]:  # what is shown for several steps is made small once
            self._shown = drawn, drawn if isinstance(drawn, str) else _webp(drawn)
        return {"frame": self._shown[1]}


def _is_small(observation: Nested) -> bool:
    try:
        return len(codec.encode(observation)) <= _MAX_OBSERVATION_BYTES
    except CodecError:  # such as a text that the environment shows
        return False


def _encoded(content: Mapping[str, Any]) -> bytes:
    try:
        return codec.encode(content)
    except CodecError:  # an action or observation of a kind that has no arrays
        return codec.encode({key: _plain(value) for key, value in content.items()})


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | bytes | int | float | np.ndarray) else str(value)


def _webp(pixels: npt.NDArray[np.uint8]) -> bytes:
    from PIL import Image

    image = Image.fromarray(pixels)
    if max(image.size) > _MAX_SIDE:  # by a whole number: a filter would take longer than drawing
        image = image.reduce(-(-max(image.size) // _MAX_SIDE))
    file = io.BytesIO()
    image.save(file, "WEBP", quality=80, method=0)
    return file.getvalue()
