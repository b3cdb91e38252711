"""The sink `wandb`: runs in Weights & Biases, online or offline. Needs the extra `wandb`."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any, Literal

from bray_core.errors import MissingExtraError
from bray_core.metrics.axes import Axes
from bray_core.metrics.run_sinks import SinkEnding, SinkRun
from bray_core.settings.ranges import NonNegativeFloat, check_fields

_RUN = "run_id"
_EXIT_CODES = {"finished": 0, "interrupted": 130, "failed": 1}


@dataclass(frozen=True, kw_only=True, slots=True)
class WandbConfig:
    """Settings of the sink `wandb`."""

    project: str | None = None
    """Project of the run. None: the name of the folder that the trial lies in."""
    entity: str | None = None
    """User or team. None: the one that is logged in."""
    group: str | None = None
    """Group of runs that belong together, such as seeds."""
    name: str | None = None
    """Name of the run. None: the trial's name."""
    tags: tuple[str, ...] = ()
    """Tags of the run."""
    mode: Literal["online", "offline"] | None = None
    """Whether figures are sent at once, or kept on disk until `wandb sync` sends them. None: as the
    variable `WANDB_MODE` says, else online."""
    every_s: NonNegativeFloat = 5.0
    """Least number of seconds between two points."""

    def __post_init__(self) -> None:
        check_fields(self)


class WandbSink:
    """Writes to one run of Weights & Biases, which later launches of the trial continue.

    The step of a point is its number of frames, which never goes back in a trial. The files of an
    offline run lie in the trial's folder, below `wandb`.
    """

    Config = WandbConfig

    @staticmethod
    def check(config: WandbConfig) -> None:
        """Refuse the sink where the library is not installed.

        Raises:
            MissingExtraError: It is not.
        """
        if find_spec("wandb") is None:
            raise MissingExtraError("the sink wandb", "bray", "wandb")

    def __init__(self, run: SinkRun, config: WandbConfig) -> None:
        import wandb

        known = run.recall().get(_RUN)
        identity = known or secrets.token_hex(4)
        self._run: Any = wandb.init(
            project=config.project or run.project,
            entity=config.entity,
            group=config.group,
            name=config.name or run.name,
            tags=config.tags or None,
            id=identity,
            resume="allow",
            config=dict(run.settings),
            allow_val_change=True,
            dir=run.trial,
            mode=config.mode,
            reinit="create_new",  # a program may have a run of its own
            settings=wandb.Settings(console="off", silent=True),
        )
        if known is None:
            run.remember({_RUN: identity})

    def write(self, axes: Axes, values: Mapping[str, float]) -> None:
        """Log one point."""
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        self._run.log({**finite, **asdict(axes)}, step=axes.frames)

    def close(self, ending: SinkEnding) -> None:
        """Write the result into the run's summary, and finish the run."""
        self._run.summary.update(ending.numbers())
        self._run.finish(exit_code=_EXIT_CODES[ending.state])
