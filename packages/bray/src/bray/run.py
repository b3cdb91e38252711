"""One switch between one process and a Ray cluster: `bray.init` returns a `Run`.

A `Run` creates each component plain in this process (`runtime="local"`) or as a handle over
workers on Ray (`runtime="ray"`); both have the same methods, so nothing else in a script changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from bray.callbacks import Callback, Callbacks, Listener
from bray.components import Components
from bray.retention import RetentionPolicy
from bray_core import runtime as core_runtime
from bray_core.errors import ClosedError, DeadlineError
from bray_core.metrics.named_sinks import SinkEntries
from bray_core.remote.restart_limit import RestartLimit

logger = logging.getLogger(__name__)


class Run(Components):
    """One launch of a trial and its components.

    Use it as a context manager, or call `close`: components are closed in the reverse order of
    their creation.

    Examples:
        >>> import tempfile
        >>> with init(tempfile.mkdtemp(), "demo") as run:
        ...     run.experiment.path.name
        'demo'
    """

    def __init__(self, launched: core_runtime.Runtime, keep: RetentionPolicy | None = None) -> None:
        super().__init__(launched, keep)
        self._error: BaseException | None = None
        self.callbacks = Callbacks()
        """What is told how training goes: `listen` adds to it, the training loop calls it."""
        # The first callback runs last: components need the runtime until they are closed.
        self._open.callback(lambda: core_runtime.shutdown(self._error))
        if keep is not None:
            self._open.callback(self._prune, keep)

    def _prune(self, keep: RetentionPolicy) -> None:
        if self.experiment.is_settled:  # a failed start leaves the trial as it was
            keep.apply(self.experiment.path)

    def metrics(self) -> dict[str, float]:
        """Return the newest value of each metric, gathered from every process of this run.

        They are written to the launch's folder once a second in any case.
        """
        return self._runtime.hub.gather()

    def serve_metrics(self, port: int, host: str = "127.0.0.1") -> str:
        """Answer Prometheus with the metrics of all processes; return the address.

        Args:
            port: 0 takes any free one.
            host: address to bind.

        Raises:
            PortInUseError: another program listens at the port.
        """
        from bray_model.serving.admin_pages import NoService
        from bray_server import ServerThread

        service = NoService("this port answers /metrics")
        server = ServerThread(service, host=host, tcp_port=None, http_port=port)
        self.close_with(server)
        return f"{server.addresses[0]}/metrics"

    def listen(self, listener: Callback | Listener) -> None:
        """Let a callback, or a function, be called as training goes, in the loop's thread.

        A function is called with each update's figures: among others `frames` played, the mean
        training `return` and an `evaluation_return`. In a local run training stands still
        meanwhile. Its second argument is a function that writes a checkpoint into the trial's
        folder; on Ray the trainer does so by itself, and the function does nothing.

        Args:
            listener: a `bray.Callback`, or such a function.

        Raises:
            ConfigError: it is neither.
        """
        self.callbacks.add(listener)

    def report(self, figures: Mapping[str, float], save: Callable[[], None]) -> None:
        """Tell every callback the figures; the training loop calls this.

        With the first call the launch's settings become the trial's.

        Args:
            figures: the newest figures of training, by name.
            save: writes a checkpoint.
        """
        self.experiment.settle()
        self.callbacks.update(figures, save)

    def close(self, error: BaseException | None = None) -> None:
        """Close every component and the runtime; the trial's folder stays.

        Args:
            error: the error that ends the launch, for its record; None: it has finished.
        """
        self._error = error
        self.callbacks.abandon()
        closing = ExitStack()  # each step is taken, also where one before it fails
        closing.callback(self._open.close)
        closing.callback(self._gather)
        if error is None:
            closing.callback(self.experiment.settle)
        try:
            closing.close()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"while the run was closed: {type(failure).__name__}: {failure}")

    def _gather(self) -> None:
        """Take the last metrics of workers that end now; a busy machine may lose them."""
        try:
            self._runtime.hub.gather()
        except ClosedError:  # closed before
            pass
        except DeadlineError as error:
            logger.warning("the last metrics are lost: %s", error)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close(error)


def init(
    project: str | Path,
    trial: str,
    runtime: Literal["local", "ray"] = "local",
    address: str | None = None,
    config: Mapping[str, object] | None = None,
    keep: RetentionPolicy | None = None,
    restarts: RestartLimit | None = None,
    sinks: SinkEntries = (),
) -> Run:
    """Open a trial and start the runtime.

    Args:
        project: folder of the project; made if it is absent.
        trial: name of the trial's folder inside it; an existing trial is resumed.
        runtime: `local` keeps all components in this process; `ray` spreads them over workers.
        address: address of a running Ray cluster; by default one is started on this machine.
        config: written to the trial's `config.yaml` once the launch goes on: with the first replay
            that a trainer is done with, the first `Run.report`, or a `close` without an error.
        keep: policy of what stays on disk; None leaves it to each model and trainer.
        restarts: limit of how often workers on Ray may die before the run ends; None takes the
            default.
        sinks: where metrics are written, too: names such as `csv`, or names with settings such as
            `{"wandb": {"project": "walker"}}`.

    Raises:
        ConfigError: the trial's name, the runtime or a sink is not valid.
        MissingExtraError: the library of a sink is not installed.
        AlreadyExistsError: this process has a run open, or another process runs this trial.
    """
    opened = core_runtime.init(project, trial, runtime, address, config, restarts, sinks)
    return Run(opened, keep)
