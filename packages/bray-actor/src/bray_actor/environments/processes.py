"""Environments in processes of their own, which are started again where one has died."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv

from bray_actor.environments.error_limit import ERROR, ErrorLimit, renewed_seed, tell_error
from bray_actor.environments.mixed_infos import MixedInfos
from bray_core.errors import BrayError, DeadlineError
from bray_core.process.hangups import children_ignore_hangups

logger = logging.getLogger(__name__)

STEP_TIMEOUT_S = 900.0
"""Longest time of a step."""
_START = "forkserver"
"""How the processes start: a fork of this one would inherit threads' locks in the middle of use."""
_DIED = (EOFError, ConnectionError)


class ProcessEnvironments(VectorEnv[Any, Any, Any]):  # type: ignore[misc]
    """N environments, each in a process of its own: an `AsyncVectorEnv` with shared memory.

    An environment that raises is made anew in its process. Where a process has died all are started
    again, and the episodes of all count as truncated.

    Args:
        name: Its name, for messages.
        make: Makes one environment; pickled, called in each process.
        num_envs: Number of environments.
    """

    def __init__(self, name: str, make: Callable[[], Any], num_envs: int) -> None:
        self._name = name
        self._make = make
        self.num_envs = num_envs
        self._inner = self._start()
        for attribute in (
            "single_observation_space",
            "single_action_space",
            "observation_space",
            "action_space",
            "metadata",
            "render_mode",
        ):
            setattr(self, attribute, getattr(self._inner, attribute))
        self._limit = ErrorLimit(name)
        self._seed = 0
        self._num_deaths = 0
        self._last: Any = None
        self._died_early = False
        self._options: Mapping[str, Any] | None = None

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of the environments; `reset_options` also of those started later."""
        if name == "reset_options":
            self._options = values
        with suppress(*_DIED):  # told by the next step, which starts them again
            self._inner.set_attr(name, values)

    @property
    def processes(self) -> list[Any]:
        """The processes, by environment."""
        found: list[Any] = self._inner.processes
        return found

    def _start(self) -> Any:
        context = multiprocessing.get_context(_START)
        context.set_forkserver_preload(["bray_actor.environments.processes"])
        make = partial(_make_in_process, self._make, os.getpid())
        try:
            with children_ignore_hangups():
                return _QuietEnvironments(
                    [make] * self.num_envs, context=_START, autoreset_mode=AutoresetMode.SAME_STEP
                )
        except _DIED as error:
            raise BrayError(
                f"environment: a process of {self._name} ended before it had an environment: what "
                "it said stands above. A program that starts processes keeps what it does below "
                "`if __name__ == '__main__':`, for each of them runs its file"
            ) from error

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Begin all episodes."""
        if isinstance(seed, int):
            self._seed = seed
        try:
            observation, info = self._inner.reset(seed=seed, options=options)
        except _DIED as error:
            observation, info = self._restart(error)
        self._tell(info)
        self._last = observation
        return observation, info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all."""
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Hand the actions to the processes."""
        self._limit.count_step()
        try:
            self._inner.step_async(actions)
        except _DIED:  # told by step_wait
            self._died_early = True

    def step_wait(self, timeout: float = STEP_TIMEOUT_S) -> tuple[Any, ...]:
        """Wait for the processes.

        Raises:
            DeadlineError: a process stands still.
            BrayError: an environment keeps failing, or its process keeps dying.
        """
        try:
            if self._died_early:
                raise EOFError
            outcome = self._inner.step_wait(timeout=timeout)
        except multiprocessing.TimeoutError as error:
            self._kill()
            raise DeadlineError(
                f"environment: no step within {timeout:g} s: a process of {self._name} stands still"
            ) from error
        except _DIED as error:
            return self._truncated(error)
        self._tell(outcome[4])
        self._last = outcome[0]
        return tuple(outcome)

    def _truncated(self, error: Exception) -> tuple[Any, ...]:
        """Start all again, and return the step that ended their episodes."""
        final = self._last
        observation, info = self._restart(error)
        self._last = observation
        no, yes = np.zeros(self.num_envs, bool), np.ones(self.num_envs, bool)
        return observation, np.zeros(self.num_envs), no, yes, {**info, "final_obs": final}

    def _restart(self, error: Exception) -> tuple[Any, dict[str, Any]]:
        """Start all processes anew, until all have begun an episode."""
        while True:
            died = [p.exitcode for p in self._inner.processes if not p.is_alive()]
            words = f"the end of a process (exit codes {died})"
            tell_error(self._name, words)
            self._limit.count_error(words, error)
            self._num_deaths += 1
            self._died_early = False
            self._kill()
            self._inner = self._start()
            seed = renewed_seed(self._seed, self._num_deaths)
            try:
                if self._options is not None:
                    self._inner.set_attr("reset_options", self._options)
                found: tuple[Any, dict[str, Any]] = self._inner.reset(seed=seed)
            except _DIED as another:
                error = another
            else:
                return found

    def _tell(self, info: Mapping[str, Any]) -> None:
        """Count the errors that the processes tell of."""
        for told in (info, info.get("final_info", {})):
            for words in told.get(ERROR, ()) if isinstance(told, Mapping) else ():
                if words:
                    tell_error(self._name, str(words))

    def _kill(self) -> None:
        for process in self._inner.processes:
            process.kill()
        # It would wait for answers of the dead, and warns of it.
        with suppress(Exception), warnings.catch_warnings(action="ignore"):
            self._inner.close(terminate=True)
        self._inner.closed = True
        self._inner.error_queue = None  # its semaphores are named, and outlive a process

    def close(self, **kwargs: Any) -> None:
        """End the processes; again is harmless."""
        if any(not process.is_alive() for process in self._inner.processes):
            self._kill()
        elif not self._inner.closed:
            self._inner.close(**kwargs)
        self.closed = True


class _QuietEnvironments(MixedInfos, AsyncVectorEnv):  # type: ignore[misc]
    """An `AsyncVectorEnv` that raises what its processes raised, and prints none of it."""

    def _raise_if_errors(self, successes: Sequence[bool]) -> None:
        if all(successes):
            return
        with warnings.catch_warnings(action="ignore"):
            super()._raise_if_errors(successes)


def _make_in_process(make: Callable[[], Any], parent: int) -> Any:
    """Make an environment in a process of its own, which a terminal's Ctrl-C does not concern.

    One is made in the parent too, whose spaces are read.
    """
    if os.getpid() != parent:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return make()
