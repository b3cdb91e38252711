"""The runtime of a launch: one process, or workers on a Ray cluster. One per process."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from bray_core import metrics
from bray_core.errors import (
    AlreadyExistsError,
    CodecError,
    ConfigError,
    MissingExtraError,
    NotFoundError,
)
from bray_core.files.json_file import read_object
from bray_core.metrics.hub import GatheredMetrics, Hub
from bray_core.metrics.named_sinks import NamedSink, SinkEntries, find_sinks
from bray_core.metrics.run_sinks import SinkEnding
from bray_core.metrics.sinks import Sinks
from bray_core.remote.restart_limit import RestartLimit
from bray_core.settings.choice import closest
from bray_core.trials.experiment import Experiment
from bray_core.trials.launch_record import ending_of
from bray_core.trials.trial import RESULT

_TRAINED = "trainer/train_s"
"""Metric that a trainer records after each replay: with the first one the launch goes on."""

logger = logging.getLogger(__name__)

RuntimeKind: TypeAlias = Literal["local", "ray"]


class Runtime:
    """A trial that is open and the place where its components run. Made by `init`."""

    def __init__(
        self,
        experiment: Experiment,
        runtime: RuntimeKind,
        *,
        owns_ray: bool = False,
        config: Mapping[str, Any] | None = None,
        host: str = "127.0.0.1",
        sinks: Sequence[NamedSink] = (),
    ) -> None:
        self.experiment = experiment
        self.runtime = runtime
        self._owns_ray = owns_ray
        metrics.registry().clear()  # counts are a launch's own
        self.sinks = Sinks(experiment.launch, config, sinks)
        """Writers of metrics."""
        self.hub = Hub(host=host, write=self._write, write_line=experiment.log.write_line)
        """Hub that gathers the metrics and logs of all processes."""

    def _write(self, gathered: GatheredMetrics) -> None:
        if any(sample.name == _TRAINED for sample in gathered.samples):
            self.experiment.settle()
        self.sinks.write(gathered)

    def close(self, error: BaseException | None = None) -> None:
        """Leave Ray if `init` joined or started it, and release the trial.

        Args:
            error: Error that ends the launch, for its record; None: it has finished.
        """
        global _current
        if _current is self:
            _current = None
        try:
            if self._owns_ray:
                from bray_core.remote.cluster import shutdown_ray

                shutdown_ray()
        finally:
            try:
                self.hub.close()
                self.sinks.close(self._ending(error))
            finally:
                self.experiment.close(error)

    def _ending(self, error: BaseException | None) -> SinkEnding:
        """Return what sinks are told of the end."""
        state = ending_of(error)
        if state != "finished":
            return SinkEnding(state=state)
        try:
            return SinkEnding(result=read_object(self.experiment.path / RESULT) or {})
        except CodecError as failure:  # the sinks still get their figures
            logger.warning("%s", failure)
            return SinkEnding()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close(error)


_current: Runtime | None = None


def init(
    project: str | Path,
    trial: str,
    runtime: RuntimeKind = "local",
    address: str | None = None,
    config: Mapping[str, Any] | None = None,
    restarts: RestartLimit | None = None,
    sinks: SinkEntries = (),
) -> Runtime:
    """Open a trial and start its runtime.

    Args:
        project: Folder of the project; made if it is absent.
        trial: Name of the trial; an existing one is resumed.
        runtime: `local` or `ray`.
        address: Address of a running Ray cluster (`ray` only); None starts one on this machine.
        config: Settings, written to the trial's `config.yaml` once the launch goes on.
        restarts: How often a worker on Ray may die before the run ends; None takes the default.
        sinks: Where metrics are written, too: names of sinks such as `csv`, or names with settings
            such as `{"wandb": {"project": "walker"}}`.

    Raises:
        ConfigError: An unknown runtime or sink, or an address for `local`.
        AlreadyExistsError: This process has a runtime, or another process runs the trial.
        MissingExtraError: Ray or a sink is asked for but not installed.
    """
    global _current
    if runtime not in get_args(RuntimeKind):
        near = closest(str(runtime), get_args(RuntimeKind))
        raise ConfigError(f"runtime: expected 'local' or 'ray', got {runtime!r}{near}")
    if address is not None and runtime != "ray":
        raise ConfigError(f"address: is for runtime='ray', got runtime={runtime!r}")
    if _current is not None:
        raise AlreadyExistsError(
            f"init: this process already runs {_current.experiment.path}: call shutdown first"
        )
    named = find_sinks(sinks)
    for sink in named:
        sink.check()
    experiment = Experiment.open(Path(project), trial, config)
    try:
        owns_ray, host = _start_ray(address, restarts) if runtime == "ray" else (False, "127.0.0.1")
        _current = Runtime(
            experiment, runtime, owns_ray=owns_ray, config=config, host=host, sinks=named
        )
    except BaseException as error:
        experiment.close(error)
        raise
    return _current


def _start_ray(address: str | None, restarts: RestartLimit | None) -> tuple[bool, str]:
    """Return whether this call started or joined Ray, and the address at which workers reach us."""
    try:
        from bray_core.remote.cluster import init_ray, this_host
    except ImportError:
        raise MissingExtraError("runtime 'ray'", "bray-core", "ray") from None
    # A namespace of its own: launches beside it on the cluster have parts of the same names.
    namespace = f"bray-{os.urandom(8).hex()}"
    return init_ray(address, restarts=restarts, namespace=namespace), this_host()


def current() -> Runtime:
    """Return this process's runtime.

    Raises:
        NotFoundError: There is none.
    """
    if _current is None:
        raise NotFoundError("runtime: none is open: call bray.init first")
    return _current


def shutdown(error: BaseException | None = None) -> None:
    """Close this process's runtime; harmless where there is none.

    Args:
        error: Error that ends the launch, for its record; None: it has finished.
    """
    if _current is not None:
        _current.close(error)
