"""Gymnasium environments as algorithms use them: their spaces, and many side by side."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode, VectorEnv

from bray_actor.atari import is_atari, make_atari
from bray_actor.spaces import of_gymnasium, resolve
from bray_core.errors import BrayError
from bray_core.spaces import Spaces


def read_spaces(environment: str) -> Spaces:
    """Return what a policy of an environment sees and may do.

    Raises:
        ConfigError: the id is unknown, or a space has no arrays of a fixed size.
        MissingExtraError: an Atari game, and the emulator is not installed.
    """
    if is_atari(environment):
        games = make_atari(environment, 1)
        observation, action = games.single_observation_space, games.single_action_space
        games.close()
    else:
        env = gymnasium.make(resolve(environment))
        observation, action = env.observation_space, env.action_space
        env.close()
    return of_gymnasium(environment, observation, action)


def reward_threshold(environment: str) -> float | None:
    """Return the mean return from which an environment counts as solved, as it is registered.

    Args:
        environment: a Gymnasium id; other tasks have none.
    """
    try:
        threshold: float | None = gymnasium.spec(resolve(environment)).reward_threshold
    except (BrayError, gymnasium.error.Error):
        return None
    return threshold


def make_environments(
    environment: str, num_envs: int, num_threads: int = 1
) -> VectorEnv[Any, Any, Any]:
    """Make environments that step side by side.

    The step that ends an episode begins the next: each step of all is `num_envs` steps recorded.

    Args:
        environment: a Gymnasium id.
        num_envs: how many.
        num_threads: number of threads that step Atari games.
    """
    if is_atari(environment):
        games: VectorEnv[Any, Any, Any] = make_atari(environment, num_envs, num_threads=num_threads)
        return games
    made: VectorEnv[Any, Any, Any] = gymnasium.make_vec(
        resolve(environment),
        num_envs,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
    )
    return made
