"""The sink `trackio`: runs in Trackio's database on this machine. Needs the extra `trackio`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any

from bray_core.errors import MissingExtraError
from bray_core.metrics.axes import Axes
from bray_core.metrics.run_sinks import SinkEnding, SinkRun
from bray_core.settings.ranges import NonNegativeFloat, check_fields

_RUN = "run_name"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackioConfig:
    """Settings of the sink `trackio`."""

    project: str | None = None
    """Project of the run. None: the name of the folder that the trial lies in."""
    group: str | None = None
    """Group of runs that belong together, such as seeds."""
    name: str | None = None
    """Name of the run. None: the trial's name."""
    server_url: str | None = None
    """Address of a Trackio server with its write token, as `trackio show` prints it. None: as the
    variable `TRACKIO_SERVER_URL` says, else a database on this machine, in `TRACKIO_DIR`."""
    space_id: str | None = None
    """Space on Hugging Face that the run is sent to, `user/space`. None: none."""
    every_s: NonNegativeFloat = 5.0
    """Least number of seconds between two points."""

    def __post_init__(self) -> None:
        check_fields(self)


class TrackioSink:
    """Writes to one run of Trackio, which later launches of the trial continue.

    The step of a point is its number of frames. Trackio's own watch over the machine is off:
    bray's metrics have it.
    """

    Config = TrackioConfig

    @staticmethod
    def check(config: TrackioConfig) -> None:
        """Refuse the sink where the library is not installed.

        Raises:
            MissingExtraError: It is not.
        """
        if find_spec("trackio") is None:
            raise MissingExtraError("the sink trackio", "bray", "trackio")

    def __init__(self, run: SinkRun, config: TrackioConfig) -> None:
        import trackio

        known = run.recall().get(_RUN)
        name = known or config.name or run.name
        self._axes = Axes()
        self._run: Any = trackio.init(
            config.project or run.project,
            name=name,
            group=config.group,
            server_url=config.server_url,
            space_id=config.space_id,
            config=dict(run.settings),
            resume="never" if known is None else "allow",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )
        if known is None:
            run.remember({_RUN: name})

    def write(self, axes: Axes, values: Mapping[str, float]) -> None:
        """Log one point."""
        self._axes = axes
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        self._run.log({**finite, **asdict(axes)}, step=axes.frames)

    def close(self, ending: SinkEnding) -> None:
        """Log the numbers of the result at the last step, and finish the run."""
        if numbers := ending.numbers():
            self.write(self._axes, numbers)
        self._run.finish()
