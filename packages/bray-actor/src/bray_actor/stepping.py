"""A vector environment's step in two halves, so that something else can be done in between."""

from __future__ import annotations

import sys
from typing import Any, Protocol


class Stepping(Protocol):
    """Takes the actions of all, and later tells what they led to."""

    def begin(self, actions: Any) -> None:
        """Begin a step of all environments."""
        ...

    def finish(self) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Return what the environment's `step` would have returned."""
        ...


class Waiting:
    """Of an environment that steps in the caller's thread: all is done at the end."""

    def __init__(self, environment: Any) -> None:
        self._env = environment
        self._actions: Any = None

    def begin(self, actions: Any) -> None:
        """Keep the actions."""
        self._actions = actions

    def finish(self) -> Any:
        """Step."""
        return self._env.step(self._actions)


class Threads:
    """Of ALE's, which steps in threads of its own."""

    def __init__(self, environment: Any) -> None:
        self._env = environment

    def begin(self, actions: Any) -> None:
        """Hand the actions to the threads."""
        self._env.send(actions)

    def finish(self) -> Any:
        """Wait for the threads."""
        return self._env.recv()


class Processes:
    """Of Gymnasium's `AsyncVectorEnv`."""

    def __init__(self, environment: Any) -> None:
        self._env = environment

    def begin(self, actions: Any) -> None:
        """Hand the actions to the processes."""
        self._env.step_async(actions)

    def finish(self) -> Any:
        """Wait for the processes."""
        return self._env.step_wait()


def stepping_of(environment: Any) -> Stepping:
    """Return how an environment takes a step in two halves."""
    for module, name, kind in (
        ("ale_py.vector_env", "AtariVectorEnv", Threads),
        ("gymnasium.vector", "AsyncVectorEnv", Processes),
    ):
        loaded = sys.modules.get(module)  # else it is not one of these
        if loaded is not None and _steps_like(environment, getattr(loaded, name)):
            return kind(environment)
    return Waiting(environment)


def _steps_like(environment: Any, known: type[Any]) -> bool:
    """Whether it is of a known kind, and its `step` the one whose halves are known."""
    return isinstance(environment, known) and type(environment).step is known.step
