"""Gymnasium environments as algorithms use them: their spaces, and many side by side."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from bray_actor.environments.spec import EnvironmentSpec
from bray_actor.spaces import of_gymnasium, resolve
from bray_core.errors import BrayError
from bray_core.spaces import Spaces


def read_spaces(environment: str | EnvironmentSpec) -> Spaces:
    """Return what a policy of an environment sees and may do, as its wrappers leave it.

    Args:
        environment: a Gymnasium id, or how it is made.

    Raises:
        ConfigError: the id is unknown, or a space has no arrays of a fixed size.
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
    return of_gymnasium(str(spec), observation, action)


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
