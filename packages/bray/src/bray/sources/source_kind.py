"""Sources of your own: a class says who plays and makes what plays, in each worker.

A template names the class: `kind: my_game.py:Duel`, `kind: my_game:Duel`, or the name under which
an installed distribution declares it as an entry point of `bray.sources`.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from bray import registry
from bray.sources.config import PlaysNoAtari
from bray_actor.environments.spec import located_code
from bray_actor.multi_agent.seat import Seat
from bray_actor.runners.rollouts import AnyRunner, SeatedRunner
from bray_core.config import from_mapping, to_mapping
from bray_core.errors import ConfigError
from bray_core.process.user_modules import import_user_file, import_user_module
from bray_core.settings.ranges import PositiveInt, check_fields
from bray_core.spaces import Spaces

_GROUP = "bray.sources"


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceKindConfig(PlaysNoAtari):
    """Settings that every source of your own has; add yours in a dataclass derived from it."""

    environment: str = ""
    """What is played, where the source plays several things; what it means is the source's."""
    num_envs: PositiveInt = 16
    """Environments side by side of each worker. More of them make larger batches, which cost less a
    step, and experience that is less alike. 8 to 64."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def title(self) -> str:
        """What is played, in words; nothing where the kind says it all."""
        return self.environment

    def __reduce__(self) -> tuple[Any, ...]:
        """Return names and plain values: a worker may not have imported the file of the class."""
        kind = type(self)
        file = getattr(sys.modules.get(kind.__module__), "__file__", None)
        return _remade, (kind.__module__, file, kind.__qualname__, to_mapping(self))

    # What algorithms ask of every source; the rest of a game of one's own is nobody's business.

    @property
    def num_processes(self) -> int:
        """Processes that play over the wire: none, the workers play."""
        return 0

    @property
    def is_simulator(self) -> bool:
        """Whether it calls over the wire: never."""
        return False

    @property
    def external(self) -> bool:
        """Whether it was started elsewhere and calls the run: never."""
        return False

    @property
    def command(self) -> str | None:
        """What starts a simulator, of which there is none."""
        return None


_TAKEN = {"kind", "agents", "actor"} | {
    name for name in dir(SourceKindConfig) if isinstance(getattr(SourceKindConfig, name), property)
}
"""Names that mean something else in every source, so that no setting of a kind may have them."""


def _remade(module: str, file: str | None, name: str, values: Mapping[str, Any]) -> Any:
    """Return settings in another process, which may not have imported the file of their class."""
    try:
        found: Any = import_user_module(module)
    except ModuleNotFoundError:
        if file is None:
            raise
        found = import_user_file(Path(file))
    for part in name.split("."):
        found = getattr(found, part)
    return from_mapping(values, found, "source")


C = TypeVar("C", bound=SourceKindConfig)


class SourceKind(ABC, Generic[C]):
    """A source of your own. It is made in the driver and in each worker, from the same settings.

    Args:
        config: an instance of its `Config`.
    """

    Config: ClassVar[type[Any]] = SourceKindConfig
    """Dataclass of its settings, derived from `SourceKindConfig`."""

    def __init__(self, config: C) -> None:
        self.config = config

    @abstractmethod
    def spaces(self) -> Mapping[str, Spaces]:
        """Return what each agent sees and may do, by its name; one player is one agent."""

    @abstractmethod
    def runner(
        self, seats: Mapping[str, Seat], *, quotas: Mapping[str, int], seed: int, worker: int
    ) -> AnyRunner:
        """Make what plays `num_envs` environments, in the worker's process.

        A `Runner` or a `MultiAgentRunner` is one. Where several policies learn it says whose the
        steps were, as `MultiAgentRunner` does (`take_frames_by_seat` and `tell`).

        Args:
            seats: what answers for each agent: its model, and the buffer of its segments, which is
                None for those that do not learn.
            quotas: steps of one policy version that this worker records, by the name of a seat;
                what `MultiAgentRunner` takes. Where only one policy learns it may be ignored.
            seed: seed of this worker's environments and draws.
            worker: number of the worker, from 0 on.
        """

    def evaluate(
        self, seats: Mapping[str, Seat], *, agents: Sequence[str], episodes: int, seed: int
    ) -> Sequence[float] | None:
        """Return the results of episodes that nobody learns from; None: those of training count.

        Args:
            seats: what answers for each agent, at its best; nothing is recorded.
            agents: the agents whose results are wanted.
            episodes: how many episodes.
            seed: seed of the environments, other than in training.
        """
        return None


def find_source_kind(kind: str) -> type[SourceKind[Any]]:
    """Return a class of your own, or an installed one, once it is known to be whole.

    Args:
        kind: an entry point of `bray.sources`, `module:Class` or `file.py:Class`.

    Raises:
        ConfigError: there is none, or something lacks; says what.
    """
    found: type[SourceKind[Any]] = registry.find(_GROUP, kind, SourceKind)
    _check_config(kind, found.Config)
    if missing := sorted(found.__abstractmethods__):
        raise ConfigError(f"source: {kind!r}: expected the methods {', '.join(missing)}, got none")
    _check_calls(kind, found)
    return found


def _check_calls(kind: str, found: type[SourceKind[Any]]) -> None:
    """Refuse methods that cannot be called as they are: it would show only once a run goes on."""
    unmade = object.__new__(found)
    for method, places, names in (
        ("spaces", (), ()),
        ("runner", ("seats",), ("quotas", "seed", "worker")),
        ("evaluate", ("seats",), ("agents", "episodes", "seed")),
    ):
        where = f"source: {kind!r}: {method}: expected a method"
        registry.check_call(where, getattr(unmade, method), places, names)


def _check_config(kind: str, config: Any) -> None:
    wanted = "a dataclass derived from bray.sources.source_kind.SourceKindConfig"
    if not isinstance(config, type) or not issubclass(config, SourceKindConfig):
        raise ConfigError(f"source: {kind!r}: expected its Config to be {wanted}, got {config!r}")
    if "__dataclass_fields__" not in vars(config):
        raise ConfigError(
            f"source: {kind!r}: expected its Config to be {wanted}, got a plain class: write "
            "@dataclass(frozen=True, kw_only=True) above it"
        )
    for name in (one.name for one in fields(config) if one.name in _TAKEN):
        raise ConfigError(
            f"source: {kind!r}: Config.{name}: expected another name: every source has a "
            f"{name!r} that means something else"
        )


def read_agents(name: str, source: SourceKind[Any]) -> dict[str, Spaces]:
    """Return the spaces of a source's agents, checked.

    Args:
        name: name of the source, for the message.
        source: the source.

    Raises:
        ConfigError: they are no `Spaces` by name.
    """
    found: object = source.spaces()
    where = f"sources.{name}: {type(source).__name__}.spaces"
    if not isinstance(found, Mapping) or not found:
        raise ConfigError(f"{where}: expected Spaces by the agents' names, got {found!r}")
    for agent, spaces in found.items():
        if not isinstance(agent, str) or not isinstance(spaces, Spaces):
            raise ConfigError(
                f"{where}: expected Spaces by the agents' names, got {spaces!r} for {agent!r}: "
                "make them with Spaces.parse or bray_actor.spaces.of_gymnasium"
            )
    return dict(found)


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceKindPlay:
    """What a worker plays: all that makes its runner. The class travels as text."""

    name: str
    """Name of the source."""
    kind: str
    """What names the class, in any folder of this machine."""
    settings: Mapping[str, Any]
    """Settings of the source as plain values."""
    seats: Mapping[str, Seat]
    """What answers for each agent."""
    quotas: Mapping[str, int]
    """Recorded steps of one policy version, of all workers together, by the seat's name."""
    num_workers: int
    """Workers that share the quotas."""
    seed: int
    """Seed of the run."""

    @classmethod
    def of(cls, name: str, kind: str, config: SourceKindConfig, **play: Any) -> SourceKindPlay:
        """Return it for a source of a template.

        Args:
            name: name of the source.
            kind: what names its class.
            config: its settings.
            **play: the other fields.
        """
        return cls(name=name, kind=located_code(kind), settings=to_mapping(config), **play)

    def runner(self, worker: int) -> AnyRunner:
        """Make the runner of a worker, in the worker's process.

        Args:
            worker: number of the worker, from 0 on.

        Raises:
            ConfigError: what was made is no runner, or does not say whose steps it played.
        """
        found = find_source_kind(self.kind)
        source = found(from_mapping(self.settings, found.Config, f"sources.{self.name}"))
        runner = source.runner(
            self.seats,
            quotas={name: steps // self.num_workers for name, steps in self.quotas.items()},
            seed=self.seed + 1000 * worker,
            worker=worker,
        )
        self._check(runner, f"sources.{self.name}: {found.__name__}.runner")
        return runner

    def _check(self, runner: AnyRunner, where: str) -> None:
        if missing := [name for name in _RUNS if not callable(getattr(runner, name, None))]:
            raise ConfigError(
                f"{where}: expected a runner, such as bray_actor.Runner, got "
                f"{type(runner).__name__} without {', '.join(missing)}"
            )
        learning = sorted({one.name for one in self.seats.values() if one.buffer is not None})
        if len(learning) > 1 and not isinstance(runner, SeatedRunner):
            raise ConfigError(
                f"{where}: expected a runner with take_frames_by_seat and tell, such as "
                f"bray_actor.multi_agent.runner.MultiAgentRunner, since {', '.join(learning)} "
                f"learn, got {type(runner).__name__}: nobody could say whose steps it played"
            )


_RUNS = ("run", "cut", "next_version", "take_returns", "take_results", "close")
"""What rollouts call: the methods of `AnyRunner`."""
