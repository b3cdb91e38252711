"""Settings of what plays, and of the workers that play or answer."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from bray.sources.curriculum import check_curriculum
from bray_actor.environments.spec import EnvironmentSpec
from bray_actor.gamecores.simulators import command_words
from bray_core.errors import ConfigError
from bray_core.settings.ranges import NonNegativeInt, Port, PositiveInt, check_fields
from bray_core.spaces import Spaces


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentSourceConfig:
    """Tasks or games of an algorithm's own, played side by side."""

    environment: str
    """What is played: a Gymnasium id, or a task or game that the algorithm knows."""
    num_envs: PositiveInt = 16
    """Environments side by side, of one worker or of one gamecore process. More of them make
    larger batches, which cost less a step, and experience that is less alike; with too many a
    policy version sees only the beginning of episodes. 8 to 64."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class GymnasiumSourceConfig(EnvironmentSpec):
    """Gymnasium environments that are stepped side by side, and how they are made."""

    num_envs: PositiveInt = 16
    """Environments side by side, of one worker or of one gamecore process. More of them make
    larger batches, which cost less a step, and experience that is less alike; with too many a
    policy version sees only the beginning of episodes. 8 to 64."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GamecoreSourceConfig(GymnasiumSourceConfig):
    """Environments stepped in the workers that answer, or in gamecore processes over the wire; or
    simulators of your own, which call over the wire."""

    environment: str = ""
    """What is played: a Gymnasium id (`FrozenLake-v1`), an id and the module that registers it
    (`module:Id-v0`), or a class or function of yours that returns an environment (`module:Class`,
    `file.py:Class`); it need not be registered. A simulator of your own has a `command` instead, or
    is `external`."""
    num_processes: NonNegativeInt = 0
    """Gamecore processes that play the environment over the wire; 0: the environments are stepped
    by the workers themselves. Of a simulator of your own this is `count`."""
    command: str | None = None
    """What starts a simulator of your own, such as `./game --port {port} --seed {seed}`; names in
    braces: address, host, port, http_port, seed, phase, lanes, first_lane, index."""
    external: bool = False
    """Whether simulators of your own, started by you, call the run's port."""
    count: PositiveInt = 1
    """Processes of the command."""
    lanes: PositiveInt = 1
    """Sessions that one process of the simulator plays side by side, of external ones all
    together. More of them make larger batches, as of `num_envs`."""
    spaces: Mapping[str, Any] | None = None
    """What a simulator of your own shows and takes: `{observation: {shape: [3]}, action:
    {discrete: 3}}`. None: the first `start` tells."""

    curriculum: str | Mapping[str, Any] | None = None
    """Settings of the environments that follow training: a schedule by the name of each, such as
    `{difficulty: {start: 0.1, end: 1.0, frames: 200000}}`, or a function of yours that returns them
    (`module:function`). An episode gets them as `reset(options=…)`, a simulator of your own in the
    reply to its `start`. Evaluations have none. None: no curriculum."""

    def __post_init__(self) -> None:
        GymnasiumSourceConfig.__post_init__(self)
        instead = {"count": "num_processes", "lanes": "num_envs"}
        check_one_kind(self, "a Gymnasium id", instead)
        self._check_curriculum()
        if self.command is not None:
            command_words(self.command)
        if self.spaces is not None:
            Spaces.parse("spaces", self.spaces)
        if self.is_simulator:  # then these say the same
            object.__setattr__(self, "num_processes", self.count)
            object.__setattr__(self, "num_envs", self.lanes)

    @property
    def is_simulator(self) -> bool:
        """Whether simulators of one's own play."""
        return self.external or self.command is not None

    @property
    def title(self) -> str:
        """What is played, in words."""
        return title_of(self.command, "external simulators" if self.external else str(self))

    def _check_curriculum(self) -> None:
        """Refuse a curriculum that is none, and one of environments that take no options."""
        check_curriculum(self.curriculum)
        if self.curriculum is None or not self.environment:
            return
        if self.is_atari or self.stepping == "envpool":
            what = "Atari games" if self.is_atari else "EnvPool's environments"
            raise ConfigError(
                f"curriculum: expected none for {what}, which take no options when they are reset"
            )


class PlaysNoAtari:
    """What algorithms ask of every source, where there are no Atari games."""

    __slots__ = ()

    @property
    def is_atari(self) -> bool:
        """Whether frames are stacked and rewards clipped as of Atari games: never."""
        return False


def title_of(command: str | None, otherwise: str) -> str:
    """Return the program of a simulator's command, in words; something else where there is none."""
    if command is None:
        return otherwise
    words = [*itertools.takewhile(_names_a_program, command_words(command))]
    return " ".join(Path(word).name for word in words) or command


class PlaysOneKind(Protocol):
    """Settings of a source that is an environment, or a simulator over the wire."""

    @property
    def environment(self) -> str:
        """What is played; nothing for a simulator."""

    @property
    def command(self) -> str | None:
        """What starts a simulator."""

    @property
    def external(self) -> bool:
        """Whether simulators call that were started elsewhere."""

    @property
    def count(self) -> int:
        """Processes of the command."""

    @property
    def lanes(self) -> int:
        """Sessions of a process."""

    @property
    def spaces(self) -> Mapping[str, Any] | None:
        """What a simulator shows and takes."""


def check_one_kind(source: PlaysOneKind, example: str, instead: Mapping[str, str]) -> None:
    """Refuse none or several of environment, command and external, and what only some have.

    Args:
        source: settings of the source.
        example: what an environment may be, in words.
        instead: settings of an environment by those of a simulator that mean the same.

    Raises:
        ConfigError: begins with the name of a setting.
    """
    kinds = {"environment": source.environment, "command": source.command is not None}
    given = [name for name, is_given in (kinds | {"external": source.external}).items() if is_given]
    if not given:
        raise ConfigError(
            f"environment: missing: expected {example}, or the `command` of a simulator of "
            "your own, or `external: true`"
        )
    if len(given) > 1:
        raise ConfigError(
            f"{given[1]}: expected one of environment, command and external, got "
            f"{' and '.join(given)}"
        )
    if not source.environment:
        return
    for name, is_usual in (
        ("spaces", source.spaces is None),
        ("count", source.count == 1),
        ("lanes", source.lanes == 1),
    ):
        if not is_usual:
            other = instead.get(name)
            cure = f"write `{other}`" if other else "those of an environment are its own"
            raise ConfigError(
                f"{name}: expected with `command` or `external` alone, got it with the "
                f"environment {source.environment!r}: {cure}"
            )


def _names_a_program(word: str) -> bool:
    """Return whether a word of a command may be the program, or what an interpreter runs."""
    return not word.startswith("-") and "{" not in word


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameSourceConfig(GamecoreSourceConfig):
    """Environments that may be Atari games, which step in threads of their own."""

    env_threads: PositiveInt | None = None
    """Threads of each worker that step Atari games; None: one a core. Other environments are
    stepped by the worker itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ActorConfig:
    """The workers that play."""

    num_workers: PositiveInt = 1
    """Workers on Ray that play, or that answer the gamecores; a local run has one."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingActorConfig(ActorConfig):
    """The workers that play, or that answer gamecores over the wire."""

    port: Port = 0
    """TCP port of all workers together; 0 takes any free one, for external simulators 7300."""
    http_port: Port | None = None
    """Port of the same workers for HTTP. None: the one after `port` for external simulators, any
    free one for a command that has `{http_port}`, else none."""
    record_every: NonNegativeInt = 0
    """One in so many episodes over the wire is written to the trial's `episodes/`, by each worker;
    0 writes none."""
    placement: Literal["caller", "workers", "proxy"] = "caller"
    """Where rows are computed on Ray: `caller`, in each worker that plays; `workers` or `proxy`, in
    inference workers that all of them ask. These pay where a large network is asked by many workers
    with few rows each, and cost where it is small: measure."""
    inference_workers: PositiveInt = 1
    """Inference workers on Ray, where the placement has some."""
