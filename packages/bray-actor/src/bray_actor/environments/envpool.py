"""EnvPool's environments as a vector environment of Gymnasium."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from bray_core.errors import ConfigError
from bray_core.settings.choice import closest


def import_envpool() -> Any:
    """Return the module.

    Raises:
        ConfigError: the package is not installed.
    """
    try:
        envpool = import_module("envpool")
    except ImportError as error:
        raise ConfigError(
            "stepping: envpool is not installed: install the package envpool, or set "
            "stepping=processes"
        ) from error
    return envpool


class EnvPoolEnvironments(VectorEnv[Any, Any, Any]):  # type: ignore[misc]
    """N environments that EnvPool steps in threads; an ended one begins with a step of its own.

    Args:
        environment: Id that EnvPool knows.
        num_envs: Number of environments.
        kwargs: Options of `envpool.make_gymnasium`.

    Raises:
        ConfigError: EnvPool is not installed, or does not know the environment or an option.
    """

    def __init__(self, environment: str, num_envs: int, kwargs: Mapping[str, Any]) -> None:
        self._module = import_envpool()
        known = list(self._module.list_all_envs())
        if environment not in known:
            raise ConfigError(
                f"environment: EnvPool does not know {environment!r}{closest(environment, known)}: "
                "set stepping=worker or processes"
            )
        self._environment, self._kwargs = environment, dict(kwargs)
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self._pool = self._make(0)
        self.single_observation_space = self._pool.observation_space
        self.single_action_space = self._pool.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def _make(self, seed: int) -> Any:
        try:
            pool = self._module.make_gymnasium(
                self._environment, num_envs=self.num_envs, seed=seed, **self._kwargs
            )
        except (AssertionError, TypeError, ValueError) as error:
            raise ConfigError(
                f"kwargs: expected options that EnvPool's {self._environment} takes, got "
                f"{self._kwargs}: {error}"
            ) from error
        with warnings.catch_warnings():  # a pool makes its spaces once, of bounds in float64
            warnings.filterwarnings("ignore", message=".*precision lowered by casting")
            _ = pool.observation_space, pool.action_space
        return pool

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Begin all episodes; a seed makes the pool anew, which takes it only then."""
        if isinstance(seed, int):
            self._pool.close()
            self._pool = self._make(seed % 2**31)
        found: tuple[Any, Any] = self._pool.reset()
        return found

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all."""
        wanted = self.single_action_space.dtype
        observation, reward, terminated, truncated, info = self._pool.step(
            np.asarray(actions, wanted)
        )
        return observation, reward, terminated, truncated, dict(info)

    def close(self, **kwargs: Any) -> None:
        """End the threads."""
        self._pool.close()
        self.closed = True
