"""One switch between one process and a Ray cluster: `bray.init` returns a `Run`.

A `Run` creates each component plain in this process (`runtime="local"`) or as a handle over
workers on Ray (`runtime="ray"`); both have the same methods, so nothing else in a script changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from bray_core import protocols
from bray_core import runtime as core_runtime
from bray_core.errors import ClosedError
from bray_core.layout import Layout
from bray_core.restart_limit import RestartLimit
from bray_core.trials.experiment import Experiment

if TYPE_CHECKING:
    from bray.retention import Keep
    from bray_actor import GamecoreFleet
    from bray_actor.runners.rollouts import AnyRunner
    from bray_buffer import BufferConfig, ReplayConfig
    from bray_model import ModelConfig

ActorFactory = Callable[[str], protocols.ActorProtocol]
"""Session name → the actor that answers it."""

Listener = Callable[[Mapping[str, float], Callable[[], None]], None]
"""Called with the figures of a run, and what writes a checkpoint."""

_WAIT_S = 900.0
"""A tick of an on-policy run may wait for a replay to be trained on, or for an evaluation."""
_MAX_BYTES_IN_FLIGHT = 4 * 1024**3
"""Budget of the observations that wait meanwhile, one of each gamecore at most."""

logger = logging.getLogger(__name__)


class Hosted(Protocol):
    """Actors that listen: where gamecores find them."""

    @property
    def addresses(self) -> list[str]:
        """Where any of them answers."""
        ...

    @property
    def worker_addresses(self) -> list[str]:
        """One `tcp://host:port` a worker, where it alone answers."""
        ...

    def close(self) -> None:
        """Stop listening and end every session."""
        ...


class Run:
    """The components of one launch of a trial.

    Use it as a context manager, or call `close`: components are closed in the reverse order of
    their creation.

    Examples:
        >>> import tempfile
        >>> with init(tempfile.mkdtemp(), "demo") as run:
        ...     run.experiment.path.name
        'demo'
    """

    def __init__(self, launched: core_runtime.Runtime, keep: Keep | None = None) -> None:
        self._runtime = launched
        self.keeps = keep
        """How much stays on disk; None leaves it to each model and trainer."""
        self.models: dict[str, Any] = {}
        """Those that `model` made, by name."""
        self._open = ExitStack()
        self._open.callback(lambda: core_runtime.shutdown(self._error))
        self._error: BaseException | None = None
        if keep is not None:
            self._open.callback(self._prune, keep)
        self._listeners: list[Listener] = []

    def _prune(self, keep: Keep) -> None:
        if self.experiment.is_settled:  # a failed start leaves the trial as it was
            keep.apply(self.experiment.path)

    @property
    def experiment(self) -> Experiment:
        """The folders of this trial."""
        return self._runtime.experiment

    @property
    def is_local(self) -> bool:
        """Whether everything lives in this process."""
        return self._runtime.runtime == "local"

    def model(
        self, name: str, module: Any, example_inputs: Any, config: ModelConfig | None = None
    ) -> Any:
        """Create a model (`bray_model.Model` or `RemoteModel`), resumed from its newest version.

        Args:
            name: also the name of its folder in the trial.
            module: a `torch.nn.Module`.
            example_inputs: nested arrays with a batch dimension.
            config: batching.
        """
        directory = self.experiment.models / name
        self._draw(name, module, example_inputs)
        config = self.keeps.of_model(config) if self.keeps else config
        if self.is_local:
            from bray_model import Model

            made: Any = Model(module, example_inputs, name=name, config=config, directory=directory)
        else:
            from bray_model.remote import RemoteModel

            made = RemoteModel(name, module, example_inputs, config=config, directory=directory)
        self.models[name] = made
        return self.keep(made)

    def _draw(self, name: str, module: Any, example_inputs: Any) -> None:
        """Let TensorBoard show what a model computes."""
        from bray.monitoring.graph import graph

        try:
            nodes = graph(name, module, example_inputs)
        except Exception as error:  # noqa: BLE001  the model itself will say what is wrong with it
            logger.info("model %s: its graph cannot be drawn: %s", name, error)
        else:
            self._runtime.sinks.graph(nodes)

    def buffer(
        self,
        name: str,
        layout: Layout,
        config: BufferConfig | ReplayConfig,
        *,
        transform: Callable[[Any], Any] | None = None,
        num_workers: int = 1,
    ) -> protocols.BufferProtocol:
        """Create a queue or a replay: in this process, or a `RemoteBuffer`.

        A replay's content is saved in the trial's folder when this run is closed, and restored by
        the next one. (A queue's is not: it came from a policy that has gone on since.)

        Args:
            name: also the name of its file.
            layout: of a segment.
            config: a `BufferConfig` makes a queue, a `ReplayConfig` a replay.
            transform: of batches, as for `bray_buffer.Buffer`.
            num_workers: on Ray; one for each rank of a trainer.
        """
        from bray_buffer import ReplayConfig, make_buffer

        if self.is_local:
            made: Any = make_buffer(layout, config, transform)
        else:
            from bray_buffer.remote import RemoteBuffer

            made = RemoteBuffer(name, layout, config, num_workers, transform=transform)
        self.keep(made)
        if isinstance(config, ReplayConfig):
            self._keep_content(made, self.experiment.path / "buffers" / name)
        return made  # type: ignore[no-any-return]

    def _keep_content(self, buffer: Any, path: Path) -> None:
        # A file for each worker, as on Ray: a trial goes on with either runtime.
        content = path / "0.buffer" if self.is_local else path
        if content.exists():
            logger.info("buffer: %d segments are restored from %s", buffer.load(content), path)

        def save() -> None:
            if content.exists() and not self.experiment.is_settled:
                return  # a failed start, perhaps with less room, leaves the trial as it was
            path.mkdir(parents=True, exist_ok=True)
            buffer.save(content)

        self._open.callback(save)

    def trainer(
        self,
        name: str,
        factory: Callable[[], protocols.TrainerProtocol],
        num_cpus: float = 1.0,
        num_workers: int = 1,
        num_gpus: float = 0.0,
    ) -> protocols.TrainerProtocol:
        """Create a trainer; on Ray the factory runs in the trainer's process, again if it dies.

        Args:
            name: of the trainer.
            factory: makes it; `bray_trainer.Ranks.current()` tells for which rank.
            num_cpus: CPUs that each rank's process claims from Ray.
            num_workers: ranks that train together on Ray; a local run has one.
            num_gpus: GPUs that each rank's process claims from Ray, and then sees alone.
        """
        factory = self.keeps.of_trainer(factory) if self.keeps else factory
        if self.is_local:
            made = factory()
        else:
            from bray_trainer.remote import RemoteTrainer

            made = self.keep(RemoteTrainer(name, factory, num_workers, num_cpus, num_gpus))
        self._open.callback(made.stop)
        return made

    def actor(
        self, name: str, maker: Callable[[], ActorFactory], *, num_workers: int = 1, port: int = 0
    ) -> Hosted:
        """Host actors over TCP; `maker` runs once in each worker and makes its session factory."""
        from bray_server import Limits, ServerThread

        limits = Limits(  # the gamecores are the run's own, and all on few hosts
            tick_timeout_s=_WAIT_S,
            idle_timeout_s=_WAIT_S,
            max_client_share=1.0,
            max_bytes_in_flight=_MAX_BYTES_IN_FLIGHT,
        )
        if self.is_local:
            made: Any = ServerThread(maker(), tcp_port=port, limits=limits)
        else:
            from bray_actor.remote import RemoteActor

            made = RemoteActor(name, maker, num_workers=num_workers, port=port, limits=limits)
        return self.keep(made)  # type: ignore[no-any-return]

    def rollouts(
        self,
        name: str,
        make: Callable[[int], AnyRunner],
        *,
        steps: int,
        lockstep: bool = False,
        num_workers: int = 1,
    ) -> Any:
        """Step vector environments: `Rollouts` here, or `RemoteRollouts`, which step by themselves.

        Args:
            name: of the pool.
            make: makes the runner of a worker from the worker's number, in its process.
            steps: of all environments of a worker, between two cuts of its segments.
            lockstep: on Ray, whether a worker waits after these for the next policy version.
            num_workers: on Ray; a local run has one.
        """
        if self.is_local:
            from bray_actor import Rollouts

            made: Any = Rollouts(make(0))
        else:
            from bray_actor.remote import RemoteRollouts

            made = RemoteRollouts(
                name, make, num_workers=num_workers, steps=steps, lockstep=lockstep
            )
        return self.keep(made)

    def workers(self, name: str, factory: Callable[[], Any], *, num_workers: int = 1) -> Any:
        """Make workers whose `map(method, calls)` shares calls out: `Workers`, `RemoteWorkers`.

        Args:
            name: of the pool.
            factory: makes the instance of a worker, in its process.
            num_workers: on Ray; a local run has one.
        """
        if self.is_local:
            from bray.workers import Workers

            made: Any = Workers(factory)
        else:
            from bray.remote import RemoteWorkers

            made = RemoteWorkers(name, factory, num_workers)
        return self.keep(made)

    def gamecores(
        self,
        environment: str,
        addresses: Callable[[], Sequence[str]],
        *,
        num_processes: int,
        envs_per_process: int,
        seed: int,
    ) -> GamecoreFleet:
        """Make gamecore processes here; `start` starts them, `check` replaces dead ones."""
        from bray_actor import GamecoreFleet

        fleet = GamecoreFleet(
            environment,
            addresses,
            num_processes=num_processes,
            envs_per_process=envs_per_process,
            seed=seed,
            log=self.experiment.path / "gamecores.log",
        )
        self._open.callback(fleet.stop)
        return fleet

    def keep(self, component: Any) -> Any:
        """Close a component of your own together with this run's; return it."""
        self._open.callback(component.close)
        return component

    def metrics(self) -> dict[str, float]:
        """Return the newest value of each metric, gathered from every process of this run.

        They are written to the launch's folder once a second in any case.
        """
        return self._runtime.hub.gather()

    def serve_metrics(self, port: int, host: str = "127.0.0.1") -> str:
        """Answer Prometheus with the metrics of all processes; return where.

        Args:
            port: 0 takes any free one.
            host: address to bind.

        Raises:
            PortInUseError: names the port.
        """
        from bray_model.serving.admin_pages import NoService
        from bray_server import ServerThread

        service = NoService("this port answers /metrics")
        server = ServerThread(service, host=host, tcp_port=None, http_port=port)
        self.keep(server)
        return f"{server.addresses[0]}/metrics"

    def listen(self, listener: Listener) -> None:
        """Let `listener` be called with a recipe's figures as it goes, in the recipe's thread.

        Such as `frames` played, the mean training `return`, an `evaluation_return`. In a local
        run training stands still meanwhile. The other argument writes a checkpoint into the
        trial's folder; on Ray the trainer does so by itself and it does nothing.
        """
        self._listeners.append(listener)

    def report(self, figures: Mapping[str, float], save: Callable[[], None]) -> None:
        """Give figures, and what writes a checkpoint, to all who listen: what a recipe calls.

        From the first time on the launch's settings are the trial's.
        """
        self.experiment.settle()
        for listener in self._listeners:
            listener(figures, save)

    def close(self, error: BaseException | None = None) -> None:
        """Close every component and the runtime; the trial's folder stays.

        Args:
            error: what ends the launch, for its record; None: it has finished.
        """
        self._error = error
        if error is None:
            self.experiment.settle()
        with suppress(ClosedError):  # closed before
            self._runtime.hub.gather()  # the last words of workers that end now
        try:
            self._open.close()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"while the run was closed: {type(failure).__name__}: {failure}")

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close(error)


def init(
    project: str | Path,
    trial: str,
    runtime: Literal["local", "ray"] = "local",
    address: str | None = None,
    config: Mapping[str, Any] | None = None,
    keep: Keep | None = None,
    restarts: RestartLimit | None = None,
) -> Run:
    """Open a trial and start the runtime.

    Args:
        project: folder of the project; made if it is absent.
        trial: name of the trial's folder inside it; an existing trial is resumed.
        runtime: `local` keeps all components in this process; `ray` spreads them over workers.
        address: of a running Ray cluster; by default one is started on this machine.
        config: written to the trial's `config.yaml` once the launch goes on: with the first replay
            that a trainer is done with, the first `Run.report`, or a `close` without an error.
        keep: how much of the trial stays on disk; None leaves it to each model and trainer.
        restarts: how often a worker on Ray may die before the run ends; None takes the default.

    Raises:
        ConfigError: a name or the runtime is not valid.
        AlreadyExistsError: this process has a run open, or another process runs this trial.
    """
    return Run(core_runtime.init(project, trial, runtime, address, config, restarts), keep)
