"""The sink `mlflow`: runs on a tracking server or in a database. Needs the extra `mlflow`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from bray_core.errors import MissingExtraError
from bray_core.metrics.axes import Axes
from bray_core.metrics.run_sinks import SinkEnding, SinkRun
from bray_core.settings.ranges import NonNegativeFloat, check_fields
from bray_core.trials.trial import flatten

_RUN = "run_id"
_STATES = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
_MOST_METRICS = 1000
_MOST_PARAMETERS = 100
_MAX_CHARS = 6000
_MAX_KEY_CHARS = 250


@dataclass(frozen=True, kw_only=True, slots=True)
class MlflowConfig:
    """Settings of the sink `mlflow`."""

    tracking_uri: str | None = None
    """Address of the server, such as `http://127.0.0.1:5000`, or of a database, such as
    `sqlite:///mlflow.db`. None: as the variable `MLFLOW_TRACKING_URI` says, else MLflow's own."""
    experiment: str | None = None
    """Name of the experiment. None: the name of the folder that the trial lies in."""
    name: str | None = None
    """Name of the run. None: the trial's name."""
    tags: Mapping[str, Any] = field(default_factory=dict)
    """Tags of the run, texts by name."""
    every_s: NonNegativeFloat = 5.0
    """Least number of seconds between two points."""

    def __post_init__(self) -> None:
        check_fields(self)


class MlflowSink:
    """Writes to one run of MLflow, which later launches of the trial continue.

    The step of a point is its number of frames. Characters that MLflow refuses in a metric's name,
    such as those around labels, become `_`. Settings are parameters; MLflow never changes one, so
    a setting that a later launch has changed becomes a tag `changed.<name>`.
    """

    Config = MlflowConfig

    @staticmethod
    def check(config: MlflowConfig) -> None:
        """Refuse the sink where the library is not installed.

        Raises:
            MissingExtraError: It is not.
        """
        if find_spec("mlflow") is None:
            raise MissingExtraError("the sink mlflow", "bray", "mlflow")

    def __init__(self, run: SinkRun, config: MlflowConfig) -> None:
        from mlflow import MlflowClient

        self._client: Any = MlflowClient(config.tracking_uri)
        self._axes = Axes()
        known = run.recall().get(_RUN)
        if known is None:
            made = self._client.create_run(
                self._experiment(config.experiment or run.project),
                run_name=config.name or run.name,
                tags={str(name): str(value) for name, value in config.tags.items()},
            )
            self._id = made.info.run_id
            run.remember({_RUN: self._id})
        else:
            self._id = known
            self._client.update_run(self._id, status="RUNNING")
        self._write_settings(run.settings)

    def write(self, axes: Axes, values: Mapping[str, float]) -> None:
        """Log one point."""
        from mlflow.entities import Metric

        self._axes = axes
        at_ms = int(axes.wall_time_s * 1000)
        points = [
            Metric(_key(name), value, at_ms, axes.frames)
            for name, value in values.items()
            if math.isfinite(value)
        ]
        for some in _batches(points, _MOST_METRICS):
            self._client.log_batch(self._id, metrics=some)

    def close(self, ending: SinkEnding) -> None:
        """Write the numbers of the result as metrics, and end the run."""
        self.write(self._axes, ending.numbers())
        self._client.set_terminated(self._id, _STATES[ending.state])

    def _experiment(self, name: str) -> str:
        """Return the identity of an experiment, which is made if it is absent."""
        from mlflow.exceptions import MlflowException

        if (found := self._client.get_experiment_by_name(name)) is None:
            try:
                return str(self._client.create_experiment(name))
            except MlflowException:  # another run has made it at the same moment
                if (found := self._client.get_experiment_by_name(name)) is None:
                    raise
        return str(found.experiment_id)

    def _write_settings(self, settings: Mapping[str, Any]) -> None:
        """Write settings as parameters, and those that an earlier launch had otherwise as tags."""
        from mlflow.entities import Param, RunTag

        written = self._client.get_run(self._id).data.params
        flat = {_key(name): str(value)[:_MAX_CHARS] for name, value in flatten(settings).items()}
        new = [Param(name, value) for name, value in flat.items() if name not in written]
        changed = [
            RunTag(f"changed.{name}"[:_MAX_KEY_CHARS], value)
            for name, value in flat.items()
            if written.get(name, value) != value
        ]
        for parameters in _batches(new, _MOST_PARAMETERS):
            self._client.log_batch(self._id, params=parameters)
        for tags in _batches(changed, _MOST_PARAMETERS):
            self._client.log_batch(self._id, tags=tags)


def _key(name: str) -> str:
    """Return what MLflow takes as the name of a metric or a parameter."""
    return re.sub(r"[^\w./ -]", "_", name, flags=re.ASCII).strip("_./ ")[:_MAX_KEY_CHARS]


def _batches(items: Sequence[Any], most: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), most):
        yield items[start : start + most]
