"""An environment that is made anew where it raises."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium

from bray_actor.environments.error_limit import ERROR, ErrorLimit, tell_error

logger = logging.getLogger(__name__)

_SEED_STEP = 1_000_003


class RecoveringEnvironment(gymnasium.Wrapper[Any, Any, Any, Any]):  # type: ignore[misc]
    """An environment that is made anew where it raises; its episode counts as truncated.

    The step that failed returns the observation before it and no reward; its info says what was
    raised, as `environment_error`. An environment that cannot even be made the first time raises.

    Args:
        make: Function that makes the environment.
        name: What is played, for messages.
        reports: Whether errors are counted and logged here.
    """

    reset_options: Mapping[str, Any] | None = None
    """Options that every reset has beside its own, such as those of a curriculum."""

    def __init__(self, make: Callable[[], Any], name: str, *, reports: bool) -> None:
        super().__init__(make())
        self._make = make
        self._name = name
        self._reports = reports
        self._limit = ErrorLimit(name)
        self._num_errors = 0
        self._seed: int | None = None
        self._last: Any = None

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take an action; where that fails the episode is truncated."""
        self._limit.count_step()
        try:
            outcome: tuple[Any, float, bool, bool, dict[str, Any]] = self.env.step(action)
        except Exception as error:  # noqa: BLE001  the boundary to code of others
            words = self._renew(error)
            return self._last, 0.0, False, True, {ERROR: words}
        self._last = outcome[0]
        return outcome

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, with another environment where that fails."""
        words = ""
        if seed is not None:
            self._seed = seed
        if self.reset_options is not None:
            options = {**self.reset_options, **(options or {})}
        while True:
            try:
                self._last, info = self.env.reset(seed=seed, options=options)
            except Exception as error:  # noqa: BLE001  the boundary to code of others
                words = self._renew(error)
                seed = self._next_seed()
                continue
            return self._last, ({**info, ERROR: words} if words else info)

    def _renew(self, error: Exception) -> str:
        """Make the environment anew; return what it raised."""
        while True:
            words = f"{type(error).__name__}: {error}".strip().splitlines()[0][:300]
            self._num_errors += 1
            if self._reports:
                tell_error(self._name, words)
            self._limit.count_error(words, error)
            try:
                self._close_quietly()
                self.env = self._make()
                if self._last is not None:  # a step may come next, where nobody resets
                    self.env.reset(seed=self._next_seed(), options=self.reset_options)
            except Exception as another:  # noqa: BLE001  the boundary to code of others
                error = another
            else:
                return words

    def _next_seed(self) -> int | None:
        """Return a seed that differs from error to error, the same in each run."""
        return None if self._seed is None else (self._seed + _SEED_STEP * self._num_errors) % 2**31

    def _close_quietly(self) -> None:
        try:
            self.env.close()
        except Exception as error:  # noqa: BLE001  it is broken already
            logger.debug("environment: %s: not closed: %s", self._name, error)
