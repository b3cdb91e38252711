"""What an algorithm declares of itself, and the settings of a run's parts.

An algorithm is one file of `bray.algorithms`, or of another distribution (entry point
`bray.algorithms`): the config of its mathematics, its trainer, and a class that says how it is
played, what it takes and how its policy is served. Network, lanes, workers and segment length
belong to the configs of the other parts, for which it only gives defaults.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, Generic, Literal, Self, TypeAlias, TypeVar, get_args

from bray import registry
from bray.goal import Goal, Outcome
from bray.policies.config import LayersConfig
from bray.policies.own import check_installed
from bray.run import Run
from bray.sources.config import ActorConfig, EnvironmentSourceConfig
from bray.sources.simulator_ports import SimulatorPorts
from bray_actor.spaces import resolve
from bray_core.errors import BrayError, ConfigError
from bray_core.settings.choice import check_choice, nearest
from bray_trainer.hooks import TrainerHooks

C = TypeVar("C")

Pacing: TypeAlias = Literal["lockstep", "lagging", "ratio", "population", "offline"]
"""Who waits for whom: `lockstep`, the players wait for each policy version; `lagging`, they go on
with an older one; `ratio`, a replay keeps playing and training in proportion; `population`, each
generation is played and then learnt from; `offline`, nothing is played."""

PARTS = {
    "model": "The network.",
    "agent": "How an agent acts and records its experience.",
    "buffer": "What holds experience between playing and training.",
    "source": "Where experience comes from.",
    "actor": "The workers that play, or that answer the simulators that play.",
    "trainer": "The algorithm.",
}
"""The parts of a run whose settings an algorithm reads, in the words of a template."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NoSettings:
    """A part without settings."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """The settings of a run's parts: a config each, of the class that the algorithm names."""

    model: Any = NoSettings()
    agent: Any = NoSettings()
    buffer: Any = NoSettings()
    source: Any
    actor: Any = NoSettings()
    trainer: Any
    demonstrations: str | Mapping[str, float] = ""
    """Data set of an algorithm that imitates, or several with their shares, where a template of
    named parts has them in a buffer; empty: the source names one."""

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yield the parts by name."""
        return ((name, getattr(self, name)) for name in PARTS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Takes:
    """What an algorithm can be combined with."""

    plays: Literal["environments", "teams", "games", "prompts"] = "environments"
    """What is played: environments of one agent, tasks of a team, games of several sides, or
    prompts and conversations with a language model."""
    actions: tuple[str, ...] = ("discrete",)
    """Kinds of actions: `discrete`, one choice; `multi_discrete`, several; `box`, reals; `mixed`,
    choices and reals."""
    bounded: bool = False
    """Whether real actions must have bounds."""
    memory: bool = False
    """Whether its policy may be recurrent."""
    gamecores: bool = False
    """Whether simulators of other processes may play for it, over the wire."""
    demonstrations: bool = False
    """Whether it needs recorded episodes."""


class Algorithm(ABC, Generic[C]):
    """One learning rule. Made in each process from the same settings; it holds no tensors.

    Args:
        parts: settings of the run, of the classes in `configs`.

    Raises:
        ConfigError: settings of two parts do not go together.
    """

    title: ClassVar[str]
    """Its name as it is written, such as `PPO`."""
    example: ClassVar[str] = "CartPole-v1"
    """A task that it learns within a minute or two: what documentation and tests run."""
    budget: ClassVar[int] = 1_000_000
    """Environment steps after which a run gives up, where nobody said."""
    pacing: ClassVar[Pacing]
    takes: ClassVar[Takes] = Takes()
    serves: ClassVar[Literal["actor", "function", "text"]] = "actor"
    """Whether its policy, once served, answers the ticks of gamecores, is a plain function, or
    answers requests for text."""
    short_run: ClassVar[tuple[str, ...]] = ("goal.max_frames=2048",)
    """Overrides of a template that end a run within seconds: for the tests of a new project."""
    configs: ClassVar[Mapping[str, type[Any]]]
    """Class of each part's config, by the part's name; a part that is absent has no settings."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        check_installed(parts.model)
        self.check()

    @property
    def config(self) -> C:
        """The settings of the algorithm itself: those of the part `trainer`."""
        config: C = self.parts.trainer
        return config

    @classmethod
    def defaults(cls, task: str) -> Mapping[str, Any]:
        """Return settings that suit a task where nobody says otherwise, by dotted name.

        Such as `{"model.hidden": (256, 256), "trainer.learning_rate": 3e-4}`.

        Args:
            task: what is played, such as `ALE/Pong-v5`.
        """
        return {}

    @classmethod
    def variant_defaults(cls, variant: str, task: str) -> Mapping[str, Any]:
        """Return settings that a variant of the algorithm has; they win over `defaults`.

        Args:
            variant: the setting `trainer.variant`, where the algorithm has one.
            task: what is played.
        """
        return {}

    @classmethod
    def config_of(cls, part: str) -> type[Any]:
        """Return the class of a part's config."""
        shared = {"model": LayersConfig, "source": EnvironmentSourceConfig, "actor": ActorConfig}
        found: type[Any] = {**shared, **cls.configs}.get(part, NoSettings)
        return found

    @classmethod
    def part_of(cls, setting: str) -> str:
        """Return the dotted name of a setting that is given by its own name alone, or by that one.

        Raises:
            ConfigError: no part has one, or several have.
        """
        names = {
            part: [field.name for field in fields(cls.config_of(part))]
            for part in PARTS  # the order of a template
        }
        found = [
            f"{part}.{name}"
            for part, settings in names.items()
            for name in settings
            if setting in (name, f"{part}.{name}")
        ]
        if len(found) > 1:
            raise ConfigError(f"{setting}: expected one of {', '.join(found)}")
        if not found:
            known = sorted(name for settings in names.values() for name in settings)
            meant = f"; known: {', '.join(known)}"
            names["goal"] = [field.name for field in fields(Goal)]  # named, not given by it alone
            near = nearest(setting, [*known, *names["goal"]])
            if near is not None:
                meant = f", did you mean {_dotted(near, names)}?"
            if having := _algorithms_with(setting):
                meant = f", which only {', '.join(having)} have"
            raise ConfigError(f"{setting}: unknown setting of {cls.title}{meant}")
        return found[0]

    @classmethod
    def of(cls, task: str, **settings: Any) -> Self:
        """Make it for a task.

        Args:
            task: what is played, such as a Gymnasium id.
            **settings: settings of any part by their own names, such as `num_envs=8`, or by dotted
                ones: `**{"source.num_envs": 8}`.

        Raises:
            ConfigError: a setting is unknown or out of range.
        """
        values: dict[str, dict[str, Any]] = {part: {} for part in PARTS}
        given = {cls.part_of(name): value for name, value in settings.items()}
        known = task_id(task)
        variant = cls.variant_defaults(str(given.get("trainer.variant", "")), known)
        defaults = {**cls.defaults(known), **variant, "source.environment": task}
        for name, value in {**defaults, **given}.items():
            part, _, setting = name.partition(".")
            values[part][setting] = value
        return cls(Parts(**{part: cls.config_of(part)(**values[part]) for part in PARTS}))

    def check(self) -> None:
        """Refuse settings of several parts that do not go together.

        Raises:
            ConfigError: begins with the dotted name of a setting.
        """

    @abstractmethod
    def train(self, run: Run, *, goal: Goal, seed: int = 1) -> Outcome:
        """Train until the goal is reached or its budget is used up.

        Args:
            run: returned by `bray.init`; an existing trial goes on from its checkpoint.
            goal: when to evaluate and when to end.
            seed: seed of network, environments and draws.
        """


def check_processes(parts: Parts) -> None:
    """Refuse gamecore processes that the workers cannot share out evenly.

    Raises:
        ConfigError: names the setting.
    """
    processes, workers = parts.source.num_processes, parts.actor.num_workers
    ports = SimulatorPorts.of(parts.source, parts.actor)
    if workers > 1 and (parts.source.external or ports.http is not None):
        raise ConfigError(
            f"actor.num_workers: expected 1 for external simulators and for HTTP, whose sessions "
            f"come to any worker, got {workers}"
        )
    if processes % workers:
        name = "count" if parts.source.is_simulator else "num_processes"
        raise ConfigError(
            f"actor.num_workers: expected a divisor of source.{name}={processes}, got {workers}"
        )


def load_algorithm(name: str) -> type[Algorithm[Any]]:
    """Return an algorithm by its name: bray's own, an installed one, `module:Class` or a file's.

    Raises:
        ConfigError: there is no such algorithm; names the closest.
    """
    found: type[Algorithm[Any]] = registry.find("bray.algorithms", name, Algorithm)
    if not found.__module__.startswith("bray."):
        _check_declaration(name, found)
    return found


def _check_declaration(name: str, algorithm: type[Algorithm[Any]]) -> None:
    """Refuse a class of others that does not say all that an algorithm says of itself."""
    noted = {name for kind in algorithm.mro() for name in vars(kind).get("__annotations__", ())}
    for attribute in ("title", "pacing", "configs", "trainer"):
        if attribute in noted and not hasattr(algorithm, attribute):
            raise ConfigError(
                f"algorithm: {name!r}: expected an attribute {attribute} of the class, got none"
            )
    check_choice(f"algorithm: {name!r}: pacing", algorithm.pacing, get_args(Pacing))
    _check_calls(name, algorithm)
    trainer = getattr(algorithm, "trainer", None)
    if (loss := getattr(trainer, "loss", None)) is not None:
        _check_loss(name, trainer, loss)
    classes = {part: algorithm.config_of(part) for part in PARTS}
    if hasattr(algorithm, "trainer") and classes["trainer"] is NoSettings:
        raise ConfigError(
            f"algorithm: {name!r}: expected settings of its trainer, got none: write "
            f'`configs = {{**{algorithm.mro()[1].__name__}.configs, "trainer": YourConfig}}`'
        )
    for part, kind in classes.items():
        if not (isinstance(kind, type) and is_dataclass(kind)):
            raise ConfigError(
                f"algorithm: {name!r}: configs[{part!r}]: expected a dataclass, got {kind!r}"
            )
        parameters: Any = getattr(kind, "__dataclass_params__", None)
        if not parameters.frozen:
            raise ConfigError(
                f"algorithm: {name!r}: configs[{part!r}]: expected a frozen dataclass, got "
                f"{kind!r}: write @dataclass(frozen=True, kw_only=True) above it"
            )
    if missing := sorted(getattr(algorithm, "__abstractmethods__", ())):
        raise ConfigError(f"algorithm: {name!r}: expected methods {', '.join(missing)}, got none")


def _check_loss(name: str, trainer: Any, loss: Callable[..., Any]) -> None:
    where = f"algorithm: {name!r}: trainer: expected a method loss(batch, step) of {trainer}"
    if loss is TrainerHooks.loss:
        raise ConfigError(f"{where}, got none")
    signature = inspect.signature(loss)
    try:
        signature.bind("self", "batch", "step")
    except TypeError as error:
        raise ConfigError(f"{where}, got loss{signature}") from error


def _check_calls(name: str, algorithm: type[Algorithm[Any]]) -> None:
    """Refuse methods that cannot be called as they are called before anything is made."""
    of_class = "a class method"
    for method, kind, called, arguments in (
        ("__init__", "one", algorithm, ("parts",)),
        ("defaults", of_class, algorithm.defaults, ("task",)),
        ("variant_defaults", of_class, algorithm.variant_defaults, ("variant", "task")),
        ("config_of", of_class, algorithm.config_of, ("part",)),
    ):
        where = f"algorithm: {name!r}: {method}: expected {kind}"
        registry.check_call(where, called, arguments)


def task_id(task: str) -> str:
    """Return the Gymnasium id of a short name, such as `Pong`; another task as it is."""
    if not task.isalnum():  # every id has a dash
        return task
    try:
        return resolve(task)
    except BrayError:
        return task


def _algorithms_with(setting: str) -> list[str]:
    """Return the names of the algorithms that have a setting of this name."""
    having = []
    for name in registry.names():
        try:
            algorithm = load_algorithm(name)
        except ConfigError:  # of another distribution, and broken
            continue
        configs = [algorithm.config_of(part) for part in PARTS]
        if any(field.name == setting for config in configs for field in fields(config)):
            having.append(name)
    return having


def _dotted(setting: str, names: Mapping[str, Sequence[str]]) -> str:
    """Return a setting with the parts that have one of its name."""
    having = [f"{part}.{setting}" for part, known in names.items() if setting in known]
    return " or ".join(map(repr, having))
