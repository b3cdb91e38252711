"""A vector environment's step in two halves, so that something else can be done in between."""

from __future__ import annotations

import multiprocessing
import sys
from contextlib import suppress
from typing import Any, Protocol

from bray_core.errors import DeadlineError, WorkerLostError

STEP_TIMEOUT_S = 900.0
"""Longest time of a step of environments in other processes."""


class SplitStepper(Protocol):
    """Takes the actions of all, and later tells what they led to."""

    def begin(self, actions: Any) -> None:
        """Begin a step of all environments."""
        ...

    def finish(self) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Return what the environment's `step` would have returned."""
        ...

    def close(self) -> None:
        """Close the environment, also in the middle of a step."""
        ...


class CallerThreadStepper:
    """Steps an environment in the caller's thread, when the step is finished."""

    def __init__(self, environment: Any) -> None:
        self._env = environment
        self._actions: Any = None

    def begin(self, actions: Any) -> None:
        """Keep the actions."""
        self._actions = actions

    def finish(self) -> Any:
        """Step the environment."""
        return self._env.step(self._actions)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


class AtariThreadStepper:
    """Steps ALE's vector environment, which has threads of its own."""

    def __init__(self, environment: Any) -> None:
        self._env = environment

    def begin(self, actions: Any) -> None:
        """Hand the actions to the threads."""
        self._env.send(actions)

    def finish(self) -> Any:
        """Wait for the threads."""
        return self._env.recv()

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


class AsyncVectorStepper:
    """Steps Gymnasium's `AsyncVectorEnv`.

    Raises:
        DeadlineError: a step took longer than a quarter of an hour.
        WorkerLostError: one of its processes has ended.
    """

    def __init__(self, environment: Any) -> None:
        self._env = environment
        self._is_stuck = False

    def begin(self, actions: Any) -> None:
        """Hand the actions to the processes."""
        self._env.step_async(actions)

    def finish(self) -> Any:
        """Wait for the processes."""
        try:
            return self._env.step_wait(timeout=STEP_TIMEOUT_S)
        except multiprocessing.TimeoutError as error:
            self._is_stuck = True
            raise DeadlineError(
                f"environment: no step within {STEP_TIMEOUT_S:g} s: one of the processes of its "
                "AsyncVectorEnv stands still"
            ) from error
        except (EOFError, ConnectionError) as error:
            self._is_stuck = True
            raise WorkerLostError(
                "environment: a process of its AsyncVectorEnv has ended in the middle of a step"
            ) from error

    def close(self) -> None:
        """End the processes; those that stand still are not waited for."""
        if not self._is_stuck:
            self._env.close()
            return
        for process in self._env.processes:
            process.kill()
        with suppress(EOFError, OSError):  # it would still wait for their answers
            self._env.close(terminate=True)
        self._env.closed = True


def make_stepper(environment: Any) -> SplitStepper:
    """Return how an environment takes a step in two halves."""
    for module, name, kind in (
        ("ale_py.vector_env", "AtariVectorEnv", AtariThreadStepper),
        ("gymnasium.vector", "AsyncVectorEnv", AsyncVectorStepper),
        ("bray_actor.environments.processes", "ProcessEnvironments", AsyncVectorStepper),
    ):
        loaded = sys.modules.get(module)  # else it is not one of these
        if loaded is not None and _steps_like(environment, getattr(loaded, name)):
            return kind(environment)
    return CallerThreadStepper(environment)


def _steps_like(environment: Any, known: type[Any]) -> bool:
    """Whether it is of a known kind, and its `step` the one whose halves are known."""
    return isinstance(environment, known) and type(environment).step is known.step
