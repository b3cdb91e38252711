"""The components of a run: each one plain in this process, or a handle over workers on Ray."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from bray.replay_content import ReplayContent
from bray.retention import RetentionPolicy
from bray_core import protocols
from bray_core.layout import Layout
from bray_core.nested import Nested
from bray_core.runtime import Runtime
from bray_core.trials.experiment import Experiment
from bray_core.workers import Workers

if TYPE_CHECKING:
    from torch import nn

    from bray_actor import GamecoreFleet, Rollouts
    from bray_actor.environments.spec import EnvironmentSpec
    from bray_actor.gamecores.multi_agent_fleet import MultiAgentFleet
    from bray_actor.gamecores.simulators import SimulatorFleet, SimulatorPhase
    from bray_actor.remote import RemoteActor, RemoteRollouts
    from bray_actor.runners.rollouts import AnyRunner
    from bray_buffer import Buffer, BufferConfig, ReplayBuffer, ReplayConfig
    from bray_buffer.remote import RemoteBuffer
    from bray_core.remote.workers import RemoteWorkers
    from bray_model import Model, ModelConfig
    from bray_model.distributed.blueprint import Placement
    from bray_model.remote import RemoteModel
    from bray_server import ServerThread
    from bray_trainer.remote import RemoteTrainer

    AnyModel: TypeAlias = Model | RemoteModel
    AnyBuffer: TypeAlias = Buffer | ReplayBuffer | RemoteBuffer

ActorFactory = Callable[[str], protocols.ActorProtocol]
"""Session name → the actor that answers it."""

_WAIT_S = 900.0
"""A tick of an on-policy run may wait until a replay is trained on, or for an evaluation."""
_MAX_BYTES_IN_FLIGHT = 4 * 1024**3
"""Budget of the observations that wait meanwhile, one of each gamecore at most."""


class Closable(Protocol):
    """A component that a run closes at its end."""

    def close(self) -> None:
        """Free what it holds."""
        ...


AnyClosable = TypeVar("AnyClosable", bound=Closable)
AnyTrainer = TypeVar("AnyTrainer", bound=protocols.TrainerProtocol)


class Components:
    """Makes components, and closes them in the reverse order of their creation.

    Args:
        launched: the trial that is open, and where its components run.
        retention: policy of what stays on disk; None leaves it to each model and trainer.
    """

    def __init__(self, launched: Runtime, retention: RetentionPolicy | None = None) -> None:
        self.retention = retention
        """How much of the trial stays on disk; None leaves it to each model and trainer."""
        self.models: dict[str, AnyModel] = {}
        """The models that `model` made, by name."""
        self._runtime = launched
        self._open = ExitStack()

    @property
    def experiment(self) -> Experiment:
        """The folders of this trial."""
        return self._runtime.experiment

    @property
    def is_local(self) -> bool:
        """True where everything lives in this process."""
        return self._runtime.runtime == "local"

    def model(
        self,
        name: str,
        module: nn.Module,
        example_inputs: Nested,
        config: ModelConfig | None = None,
        *,
        placement: Placement = "caller",
        num_workers: int = 1,
    ) -> AnyModel:
        """Create a model, resumed from its newest version in the trial.

        Args:
            name: name of the model, and of its folder in the trial.
            module: computes the outputs; its parameters are the first version.
            example_inputs: nested arrays with a batch dimension; a tuple of several arguments.
            config: settings of batching, precision and retention.
            placement: where rows are computed on Ray: in each process that asks (`caller`), or in
                inference workers (`workers`, `proxy`), see `RemoteModel`. A local run has one
                process, which computes them.
            num_workers: number of inference workers on Ray.

        Raises:
            ConfigError: there is no such placement, or it has no inference workers.
        """
        from bray.monitoring.graph import draw_graph
        from bray_model.distributed.blueprint import check_placement

        check_placement(placement, num_workers)
        directory = self.experiment.models / name
        draw_graph(self._runtime.sinks, name, module, example_inputs)
        config = self.retention.model_config(config) if self.retention else config
        made: AnyModel
        if self.is_local:
            from bray_model import Model

            made = Model(module, example_inputs, name=name, config=config, directory=directory)
        else:
            from bray_core.remote.cluster import this_host
            from bray_model.remote import RemoteModel

            made = RemoteModel(
                name,
                module,
                example_inputs,
                config=config,
                directory=directory,
                placement=placement,
                num_workers=num_workers,
                # On a cluster they run on any node, since those who ask do.
                host="127.0.0.1" if this_host() == "127.0.0.1" else None,
            )
        self.models[name] = made  # `bray train` exports one of these at the end
        return self.close_with(made)

    def buffer(
        self,
        name: str,
        layout: Layout,
        config: BufferConfig | ReplayConfig,
        *,
        transform: Callable[[Nested], Nested] | None = None,
        num_workers: int = 1,
        begin: Callable[[ReplayBuffer], object] | None = None,
    ) -> AnyBuffer:
        """Create a queue or a replay: in this process, or a `RemoteBuffer`.

        A replay's content is saved in the trial's folder when this run is closed, and restored by
        the next one. (A queue's is not: it came from a policy that has gone on since.)

        Args:
            name: name of the buffer, and of its folder in the trial.
            layout: packed layout of one segment.
            config: a `BufferConfig` makes a queue, a `ReplayConfig` a replay.
            transform: changes each batch, as in `bray_buffer.Buffer`.
            num_workers: number of processes on Ray, one for each rank of a trainer.
            begin: called with a replay that holds nothing, in the process that has it: what it
                begins with, again where a killed process was replaced. It is pickled on Ray.
        """
        from bray_buffer import Buffer, ReplayBuffer, ReplayConfig, make_buffer

        made: AnyBuffer
        if self.is_local:
            made = make_buffer(layout, config, transform)
        else:
            from bray_buffer.remote import RemoteBuffer

            made = RemoteBuffer(name, layout, config, num_workers, transform=transform, begin=begin)
        self.close_with(made)
        if isinstance(config, ReplayConfig):
            content = ReplayContent(
                made, self.experiment, name, is_local=self.is_local, num_workers=num_workers
            )
            content.restore()
            self._open.callback(content.save)  # runs before the buffer's own `close`
            if isinstance(made, ReplayBuffer):
                if begin is not None:
                    begin(made)
            elif begin is not None and not isinstance(made, Buffer):
                made.begin()
        return made

    def trainer(
        self,
        name: str,
        factory: Callable[[], AnyTrainer],
        num_cpus: float = 1.0,
        num_workers: int = 1,
        num_gpus: float = 0.0,
    ) -> AnyTrainer | RemoteTrainer:
        """Create a trainer; on Ray the factory runs in the trainer's process, again if it dies.

        Args:
            name: name of the trainer.
            factory: makes the trainer; `bray_trainer.Ranks.current()` tells for which rank.
            num_cpus: CPUs that each rank's process claims from Ray.
            num_workers: ranks that train together on Ray; a local run has one.
            num_gpus: GPUs that each rank's process claims from Ray, and then sees alone.
        """
        factory = self.retention.trainer_factory(factory) if self.retention else factory
        made: AnyTrainer | RemoteTrainer
        if self.is_local:
            made = factory()
        else:
            from bray_trainer.remote import RemoteTrainer

            workers = RemoteTrainer(name, factory, num_workers, num_cpus, num_gpus)
            made = self.close_with(workers)
        self._open.callback(made.stop)  # writes a checkpoint, before a remote one is closed
        return made

    def actor(
        self,
        name: str,
        maker: Callable[[], ActorFactory],
        *,
        num_workers: int = 1,
        port: int = 0,
        http_port: int | None = None,
    ) -> ServerThread | RemoteActor:
        """Host actors over TCP, and over HTTP if asked for.

        Gamecores find them at the `addresses` of what this returns.

        Args:
            name: name of the pool of workers.
            maker: makes a worker's factory of actors, in the worker's process.
            num_workers: number of processes on Ray; a local run has one thread.
            port: TCP port; 0 takes any free one.
            http_port: port for HTTP; 0 takes any free one, None opens none.
        """
        from bray_server import Limits, ServerThread

        limits = Limits(  # the gamecores are the run's own, and all on few hosts
            tick_timeout_s=_WAIT_S,
            idle_timeout_s=_WAIT_S,
            max_client_share=1.0,
            max_bytes_in_flight=_MAX_BYTES_IN_FLIGHT,
        )
        if self.is_local:
            server = ServerThread(maker(), tcp_port=port, http_port=http_port, limits=limits)
            return self.close_with(server)
        from bray_actor.remote import RemoteActor

        pool = RemoteActor(
            name, maker, num_workers=num_workers, port=port, http_port=http_port, limits=limits
        )
        return self.close_with(pool)

    def rollouts(
        self,
        name: str,
        make: Callable[[int], AnyRunner],
        *,
        steps: int,
        lockstep: bool = False,
        num_workers: int = 1,
    ) -> Rollouts | RemoteRollouts:
        """Step vector environments: `Rollouts` step when told to, `RemoteRollouts` by themselves.

        Args:
            name: name of the pool of workers.
            make: makes a worker's runner from the worker's number, in the worker's process.
            steps: steps of all environments of a worker between two cuts of its segments.
            lockstep: on Ray, whether a worker waits after these for the next policy version.
            num_workers: number of processes on Ray; a local run has one runner.
        """
        if self.is_local:
            from bray_actor import Rollouts

            return self.close_with(Rollouts(make(0)))
        from bray_actor.remote import RemoteRollouts

        pool = RemoteRollouts(name, make, num_workers=num_workers, steps=steps, lockstep=lockstep)
        return self.close_with(pool)

    def workers(
        self, name: str, factory: Callable[[], object], *, num_workers: int = 1
    ) -> Workers | RemoteWorkers:
        """Make workers whose `map(method, calls)` shares calls out among them.

        Args:
            name: name of the pool of workers.
            factory: makes the instance whose methods are called, in the worker's process.
            num_workers: number of processes on Ray; a local run has one instance.
        """
        if self.is_local:
            return self.close_with(Workers(factory))
        from bray_core.remote.workers import RemoteWorkers

        return self.close_with(RemoteWorkers(name, factory, num_workers))

    def gamecores(
        self,
        environment: str | EnvironmentSpec,
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

    def game_processes(
        self,
        games: str,
        addresses: Callable[[], Sequence[str]],
        *,
        num_processes: int,
        lanes: int,
        seed: int,
    ) -> MultiAgentFleet:
        """Make gamecore processes of a game of several agents here; `start` starts them, `check`
        replaces dead ones. The arguments are those of `MultiAgentFleet`."""
        from bray_actor.gamecores.multi_agent_fleet import MultiAgentFleet

        fleet = MultiAgentFleet(
            games,
            addresses,
            num_processes=num_processes,
            lanes=lanes,
            seed=seed,
            log=self.experiment.path / "gamecores.log",
        )
        self._open.callback(fleet.stop)
        return fleet

    def simulators(
        self,
        command: str,
        addresses: Callable[[], Sequence[str]],
        *,
        num_processes: int = 1,
        lanes: int = 1,
        seed: int = 0,
        phase: SimulatorPhase = "training",
        http_port: int | None = None,
        logs: Path | None = None,
    ) -> SimulatorFleet:
        """Make processes of a simulator of one's own here; `start` starts them, `check` replaces
        dead ones. The arguments are those of `SimulatorFleet`."""
        from bray_actor.gamecores.simulators import SimulatorFleet

        fleet = SimulatorFleet(
            command,
            addresses,
            num_processes=num_processes,
            lanes=lanes,
            seed=seed,
            phase=phase,
            http_port=http_port,
            logs=logs,
        )
        self._open.callback(fleet.stop)
        return fleet

    def close_with(self, component: AnyClosable) -> AnyClosable:
        """Close a component of your own together with this run's; return it."""
        self._open.callback(component.close)
        return component
