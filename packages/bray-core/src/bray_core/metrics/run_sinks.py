"""Sinks that a run names: what one is told about the run, and what one has to offer.

A sink is a class of the entry point group `bray.sinks`, with a dataclass `Config` inside. It is
made as `Sink(run, config)` in a thread of its own, in which all its methods are called.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from bray_core.files.json_file import finite, read_object
from bray_core.files.saved_file import write_atomic
from bray_core.metrics.axes import Axes

Ending: TypeAlias = Literal["finished", "interrupted", "failed"]

_FOLDER = "sinks"


@dataclass(frozen=True, kw_only=True, slots=True)
class SinkRun:
    """What a sink is told about the run when it is opened."""

    sink: str
    """Name of the sink."""
    trial: Path
    """Folder of the trial."""
    launch: Path
    """Folder of the launch, in its trial's `launches`."""
    settings: Mapping[str, Any]
    """Settings of the launch, nested as in a template."""

    @property
    def name(self) -> str:
        """Name of the trial."""
        return self.trial.name

    @property
    def project(self) -> str:
        """Name of the project, which is the folder that the trial lies in."""
        return self.trial.absolute().parent.name

    def recall(self) -> dict[str, Any]:
        """Return what this sink remembered in an earlier launch of the trial; empty at first.

        A copy of the trial does not have it: it is another run.

        Raises:
            CodecError: The file is no JSON object.
        """
        return read_object(self._file) or {}

    def remember(self, what: Mapping[str, Any]) -> None:
        """Write what the next launch of the trial is to recall, such as the identity of the run."""
        self._file.parent.mkdir(exist_ok=True)
        write_atomic(self._file, json.dumps(what).encode())

    @property
    def _file(self) -> Path:
        return self.trial / _FOLDER / f"{self.sink}.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class SinkEnding:
    """How a launch ended, as a sink is told."""

    state: Ending = "finished"
    """Whether the launch finished, was interrupted, or failed."""
    result: Mapping[str, Any] = field(default_factory=dict)
    """The content of the trial's `result.json`; empty where the launch came to no result."""

    def numbers(self) -> dict[str, float]:
        """Return the finite numbers of the result as `result/<name>`; truth is 1 or 0."""
        found = {}
        for name, value in self.result.items():
            number = float(value) if isinstance(value, bool) else finite(value)
            if number is not None:
                found[f"result/{name}"] = number
        return found


class RunSink(Protocol):
    """Something that takes the figures of a run as they come."""

    def write(self, axes: Axes, values: Mapping[str, float]) -> None:
        """Take the newest value of each metric that changed.

        Args:
            axes: Where on each x-axis these values are.
            values: Values by key, which is the metric's name with its labels.
        """
        ...

    def close(self, ending: SinkEnding) -> None:
        """Write the result and what is left."""
        ...
