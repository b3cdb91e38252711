"""Gymnasium environments as algorithms use them: their spaces, and many side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from bray_actor.environments.spec import EnvironmentSpec
from bray_actor.spaces import resolve, spec_of
from bray_core import nested
from bray_core.errors import BrayError, ConfigError
from bray_core.nested import ArraySpec, Nested


@dataclass(frozen=True, slots=True)
class Spaces:
    """What goes into a policy and what comes out, read from an environment."""

    environment: str
    """Its id, for errors."""
    observation: Nested
    """`ArraySpec` of each leaf of one observation."""
    action: ArraySpec
    action_space: gymnasium.Space[Any]

    @classmethod
    def of(cls, environment: str | EnvironmentSpec) -> Spaces:
        """Read an environment's spaces, as its wrappers leave them.

        Args:
            environment: a Gymnasium id, or how it is made.

        Raises:
            ConfigError: the id is unknown, or a space has no fixed arrays.
            MissingExtraError: an Atari game, and the emulator is not installed.
        """
        spec = EnvironmentSpec.of(environment)
        if spec.is_atari or spec.stepping == "envpool":
            games = spec.make_vector(1)
            observation, action = games.single_observation_space, games.single_action_space
            games.close()
        else:
            env = spec.make()
            observation, action = env.observation_space, env.action_space
            env.close()
        action_spec = spec_of(action)
        if not isinstance(action_spec, ArraySpec):
            raise ConfigError(
                f"environment: {environment}: algorithms take no nested action {action}"
            )
        return cls(spec.environment, spec_of(observation), action_spec, action)

    @property
    def recorded(self) -> tuple[Nested, ArraySpec]:
        """Observation and action as they are recorded: float64 in float32, as networks see it.

        The model's own inputs keep the environment's type: it casts them itself, and so an export
        takes what the environment gives.
        """
        return nested.map(_narrow, self.observation), _narrow(self.action)

    @property
    def is_image(self) -> bool:
        """Whether an observation is a stack of frames, uint8 `[C, H, W]`."""
        spec = self.observation
        return isinstance(spec, ArraySpec) and spec.dtype == np.uint8 and len(spec.shape) == 3

    @property
    def size(self) -> int:
        """D of an observation that is one vector `[D]`.

        Raises:
            ConfigError: it is none.
        """
        if not isinstance(self.observation, ArraySpec) or len(self.observation.shape) != 1:
            raise ConfigError(
                f"environment: {self.environment}: expected an observation that is one vector, "
                f"got {self.observation}"
            )
        return self.observation.shape[0]

    @property
    def num_actions(self) -> int:
        """A of a Discrete action.

        Raises:
            ConfigError: it is not Discrete.
        """
        if not isinstance(self.action_space, gymnasium.spaces.Discrete):
            raise ConfigError(
                f"environment: {self.environment}: expected Discrete actions, "
                f"got {self.action_space}"
            )
        return int(self.action_space.n)

    @property
    def example(self) -> Nested:
        """One observation of zeros with a batch dimension."""
        return nested.map(lambda leaf: np.zeros((1, *leaf.shape), leaf.dtype), self.observation)


def _narrow(leaf: ArraySpec) -> ArraySpec:
    return ArraySpec(np.dtype(np.float32), leaf.shape) if leaf.dtype == np.float64 else leaf


def reward_threshold(environment: str) -> float | None:
    """Return the mean return from which an environment counts as solved, as it is registered.

    Args:
        environment: a Gymnasium id; other tasks have none.
    """
    try:
        known = gymnasium.registry.get(resolve(environment))
    except BrayError:
        return None
    return None if known is None else known.reward_threshold


def make_environments(
    environment: str | EnvironmentSpec, num_envs: int, num_threads: int = 1
) -> VectorEnv[Any, Any, Any]:
    """Make environments that step side by side.

    The step that ends an episode begins the next: each step of all is `num_envs` steps recorded.

    Args:
        environment: a Gymnasium id, or how it is made.
        num_envs: how many.
        num_threads: number of threads that step Atari games.
    """
    spec = EnvironmentSpec.of(environment)
    made: VectorEnv[Any, Any, Any] = spec.make_vector(num_envs, num_threads=num_threads)
    return made
