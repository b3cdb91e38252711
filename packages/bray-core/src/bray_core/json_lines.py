"""The JSON lines sink: one object a gathering, `{"step", "wall_time_s", "values"}`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path


class JsonLinesSink:
    """Appends to a file, a line at a time, so that a crash loses at most the last line."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def write(self, step: int, values: Mapping[str, float], wall_time_s: float) -> None:
        """Append one line; values that are not finite become null."""
        finite = {name: v if math.isfinite(v) else None for name, v in values.items()}
        line = {"step": step, "wall_time_s": wall_time_s, "values": finite}
        self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
