"""Settings of what plays, and of the workers that play or answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bray_actor.environments.spec import EnvironmentSpec
from bray_core.settings.ranges import NonNegativeInt, Port, PositiveInt, check_fields


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
    """Environments stepped in the workers that answer, or in gamecore processes over the wire."""

    num_processes: NonNegativeInt = 0
    """Gamecore processes that play over the wire; 0: the environments are stepped by the workers
    themselves."""


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
    """TCP port of all workers together; 0 takes any free one."""
    record_every: NonNegativeInt = 0
    """One in so many episodes over the wire is written to the trial's `episodes/`, by each worker;
    0 writes none."""
    placement: Literal["caller", "workers", "proxy"] = "caller"
    """Where rows are computed on Ray: `caller`, in each worker that plays; `workers` or `proxy`, in
    inference workers that all of them ask. These pay where a large network is asked by many workers
    with few rows each, and cost where it is small: measure."""
    inference_workers: PositiveInt = 1
    """Inference workers on Ray, where the placement has some."""
