"""How far a trial has come, in a file beside its checkpoints: a rerun goes on from there."""

from __future__ import annotations

import json
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from bray_core.errors import BrayError, CodecError, FormatError
from bray_core.files.json_file import read_object
from bray_core.files.saved_file import check_format, write_atomic
from bray_core.trials.trial import RESULT
from bray_trainer.checkpoints import checkpoint

NAME = "progress.json"
WINDOW = 100
"""Episodes over which the training return is averaged."""
_FORMAT = 1
"""Format number of `progress.json`."""


@dataclass(kw_only=True, slots=True)
class LoopState:
    """Counts of a trial, all its launches together."""

    frames: int = 0
    """Environment steps played."""
    seconds: float = 0.0
    """Time spent in the loop."""
    evaluated_at: int = 0
    """Frames at the last evaluation."""
    returns: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    """Returns of the newest training episodes."""

    @classmethod
    def restore(cls, trial: Path, checkpoints: Path) -> LoopState:
        """Return the state at a trial's newest checkpoint; a new one where there is none.

        Raises:
            CodecError: `progress.json` cannot be read, or a newer version of bray wrote it.
        """
        if not checkpoints_in(checkpoints):
            return cls()
        path = checkpoints / NAME
        try:
            content = read_object(path)
            if content is None:
                return _of_earlier_version(trial, checkpoints)
            check_format(path, content, _FORMAT)
            content.pop("format", None)
            returns = msgspec.convert(content.pop("returns", []), list[float])
            state = msgspec.convert(content, cls)
        except FormatError:
            raise
        except (ValueError, TypeError) as error:
            raise CodecError(f"{path}: not the progress of a trial: {error}: delete it") from error
        state.returns = deque(returns, maxlen=WINDOW)
        return state

    def write(self, checkpoints: Path) -> None:
        """Write it beside the checkpoints."""
        content = {
            "format": _FORMAT,
            "frames": self.frames,
            "seconds": self.seconds,
            "evaluated_at": self.evaluated_at,
            "returns": list(self.returns),
        }
        write_atomic(checkpoints / NAME, json.dumps(content).encode())


def checkpoints_in(folder: Path) -> frozenset[tuple[str, int]]:
    """Return the checkpoints in a folder, each with the time at which it was written."""
    found = set()
    for path in folder.glob("**/*.pt"):  # of several trainers each has a folder of its own
        with suppress(FileNotFoundError):  # a trainer of another process has just replaced it
            if path.name != "partial.pt":  # it is being written
                found.add((str(path.relative_to(folder)), path.stat().st_mtime_ns))
    return frozenset(found)


def _of_earlier_version(trial: Path, checkpoints: Path) -> LoopState:
    """Return what a trial without `progress.json` tells: PPO's checkpoints, or the last result."""
    state = checkpoint.load_newest(checkpoints) or {}
    own: dict[str, Any] = (state.get("ranks") or [{}])[0].get("own") or {}
    if "frames" in own:
        returns = deque(own.get("returns", ()), maxlen=WINDOW)
        return LoopState(frames=own["frames"], returns=returns)
    with suppress(BrayError):
        result = read_object(trial / RESULT) or {}
        frames, seconds = result.get("frames", 0), result.get("seconds", 0.0)
        if isinstance(frames, int) and isinstance(seconds, int | float):
            return LoopState(frames=frames, seconds=float(seconds))
    return LoopState()
