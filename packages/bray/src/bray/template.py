"""Templates: one YAML file that describes a run, read into checked dataclasses.

A template has up to seven kinds of parts: model, agent, buffer, source, actor, trainer, render.
This version has one recipe, `ppo`, and the parts that it needs. A template is named
(`cartpole`, shipped with bray) or is the path of a YAML file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Literal

from bray.checks import fraction, layers, positive
from bray_core.config import closest, load_yaml
from bray_core.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelPart:
    """The policy network: a multi-layer perceptron with a policy and a value head."""

    hidden: tuple[int, ...] = (64, 64)
    """Units of each hidden layer."""

    def __post_init__(self) -> None:
        layers(hidden=self.hidden)


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentPart:
    """How an agent records its experience."""

    segment_length: int = 32
    """Steps T of one segment; 16 to 256."""

    def __post_init__(self) -> None:
        positive(segment_length=self.segment_length)


@dataclass(frozen=True, kw_only=True, slots=True)
class SourcePart:
    """The gamecores: processes that step environments and call the actor over the wire."""

    environment: str = "CartPole-v1"
    """A Gymnasium environment id."""
    num_processes: int = 2
    """Gamecore processes."""
    envs_per_process: int = 8
    """Environments that each process steps."""

    def __post_init__(self) -> None:
        positive(num_processes=self.num_processes, envs_per_process=self.envs_per_process)

    @property
    def num_envs(self) -> int:
        """Environments in all."""
        return self.num_processes * self.envs_per_process


@dataclass(frozen=True, kw_only=True, slots=True)
class BufferPart:
    """The queue between actors and trainer."""

    capacity: int = 4096
    """Segments that it holds at most."""

    def __post_init__(self) -> None:
        positive(capacity=self.capacity)


@dataclass(frozen=True, kw_only=True, slots=True)
class ActorPart:
    """The workers that answer the gamecores."""

    num_workers: int = 1
    """Worker processes (on Ray; a local run has one, in its own process)."""
    port: int = 0
    """TCP port of all workers together; 0 takes any free one."""
    record_every: int = 0
    """Each worker writes 1 in so many episodes to the trial's `episodes/`; 0 writes none."""

    def __post_init__(self) -> None:
        positive(num_workers=self.num_workers)
        if self.record_every < 0:
            raise ConfigError(f"record_every: expected 0 or more, got {self.record_every}")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port: expected 0 to 65535, got {self.port}")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerPart:
    """Proximal policy optimisation (Schulman et al. 2017), and when to stop."""

    steps_per_replay: int = 512
    """Environment steps that one policy version collects and is trained on."""
    epochs: int = 10
    """Passes over each replay."""
    minibatch_size: int = 128
    """Steps of one optimiser step."""
    learning_rate: float = 1e-3
    """Adam's step size at the start."""
    gamma: float = 0.99
    """Discount per step."""
    gae_lambda: float = 0.95
    """λ of generalised advantage estimation."""
    clip: float = 0.2
    """Clip range ε of the probability ratio."""
    value_coefficient: float = 0.5
    """Weight of the value loss."""
    entropy_coefficient: float = 0.0
    """Weight of the entropy bonus."""
    max_grad_norm: float = 0.5
    """Gradient norm above which gradients are scaled down."""
    anneal_frames: int = 0
    """Frames over which the learning rate falls linearly to a tenth; 0 keeps it constant."""
    checkpoint_every: int = 20
    """Replays between two checkpoints."""

    def __post_init__(self) -> None:
        positive(
            steps_per_replay=self.steps_per_replay,
            epochs=self.epochs,
            minibatch_size=self.minibatch_size,
            learning_rate=self.learning_rate,
            max_grad_norm=self.max_grad_norm,
            checkpoint_every=self.checkpoint_every,
        )
        fraction(gamma=self.gamma, gae_lambda=self.gae_lambda, clip=self.clip)
        if self.anneal_frames < 0:
            raise ConfigError(f"anneal_frames: expected 0 or more, got {self.anneal_frames}")


@dataclass(frozen=True, kw_only=True, slots=True)
class GoalPart:
    """When training has succeeded, and when it gives up."""

    episode_return: float = 475.0
    """Mean return that the evaluation must reach."""
    evaluation_episodes: int = 100
    """Episodes of an evaluation, played with the policy's most likely actions."""
    evaluate_at: float = 400.0
    """Mean training return (last 100 episodes) from which evaluations start."""
    max_frames: int = 1_000_000
    """Environment steps after which training gives up."""

    def __post_init__(self) -> None:
        positive(evaluation_episodes=self.evaluation_episodes, max_frames=self.max_frames)
        for name in ("episode_return", "evaluate_at"):
            if math.isnan(getattr(self, name)):
                raise ConfigError(f"{name}: expected a number, got nan")


@dataclass(frozen=True, kw_only=True, slots=True)
class Template:
    """A whole run."""

    recipe: Literal["ppo"] = "ppo"
    """The algorithm."""
    model: ModelPart = field(default_factory=ModelPart)
    agent: AgentPart = field(default_factory=AgentPart)
    source: SourcePart = field(default_factory=SourcePart)
    buffer: BufferPart = field(default_factory=BufferPart)
    actor: ActorPart = field(default_factory=ActorPart)
    trainer: TrainerPart = field(default_factory=TrainerPart)
    goal: GoalPart = field(default_factory=GoalPart)

    def __post_init__(self) -> None:
        steps, lanes = self.trainer.steps_per_replay, self.source.num_envs
        if steps % lanes:
            raise ConfigError(
                f"trainer.steps_per_replay: expected a multiple of the {lanes} environments "
                f"(source.num_processes × source.envs_per_process), got {steps}"
            )
        if self.source.num_processes % self.actor.num_workers:
            raise ConfigError(
                f"actor.num_workers: expected a divisor of source.num_processes="
                f"{self.source.num_processes}, got {self.actor.num_workers}"
            )


def names() -> list[str]:
    """Return the names of the templates that ship with bray."""
    files = resources.files("bray") / "templates"
    return sorted(f.name.removesuffix(".yaml") for f in files.iterdir() if f.name.endswith(".yaml"))


def path_of(name: str) -> Path:
    """Return the file of a named template, or `name` itself where it is a YAML file.

    Raises:
        ConfigError: neither a known name nor a file; names the closest template.
    """
    if name in names():
        return Path(str(resources.files("bray") / "templates" / f"{name}.yaml"))
    if name.endswith((".yaml", ".yml")) or "/" in name:
        if Path(name).is_file():
            return Path(name)
        raise ConfigError(f"template: no file {name!r}")
    raise ConfigError(
        f"template: unknown {name!r}{closest(name, names())}; "
        f"known: {', '.join(names())}, or the path of a YAML file"
    )


def load(name: str, overrides: Sequence[str] = ()) -> Template:
    """Read a template by name or path, with overrides such as `trainer.learning_rate=3e-4`.

    Raises:
        ConfigError: naming file, line, key, what came and what is allowed.
    """
    return load_yaml(path_of(name), Template, overrides)
