"""An environment that is made anew where it raises."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium

from bray_core import metrics
from bray_core.errors import BrayError

logger = logging.getLogger(__name__)

MAX_ERRORS = 10
"""Errors that an environment may have within the last `WINDOW_STEPS` steps."""
WINDOW_STEPS = 1000
ERROR = "environment_error"
"""Key of the info that says what an environment raised."""
_SEED_STEP = 1_000_003
_logged: set[str] = set()
"""Errors that were logged already: each once a process."""


def tell_error(name: str, words: str) -> None:
    """Count an environment's error, and log it the first time.

    Args:
        name: What was played.
        words: Last line of the traceback.
    """
    metrics.record("actor/environment_errors", 1, kind="count")
    if words not in _logged:
        _logged.add(words)
        logger.warning(
            "environment: %s raised %s: it is made anew and its episode counts as truncated "
            "(the metric actor/environment_errors counts such errors)",
            name,
            words,
        )


class ErrorLimit:
    """Bounds how often environments may fail: `MAX_ERRORS` within the last `WINDOW_STEPS` steps.

    Args:
        name: What is played.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._steps = 0
        self._errors: deque[int] = deque()

    def count_step(self) -> None:
        """Count a step, whatever comes of it."""
        self._steps += 1

    def count_error(self, words: str, cause: Exception) -> None:
        """Count an error.

        Raises:
            BrayError: there were too many; says what the last one was.
        """
        self._errors.append(self._steps)
        while self._errors[0] < self._steps - WINDOW_STEPS:
            self._errors.popleft()
        if len(self._errors) > MAX_ERRORS:
            raise BrayError(
                f"environment: {self._name} failed {len(self._errors)} times within its last "
                f"{WINDOW_STEPS} steps (up to {MAX_ERRORS} are taken), the last time with "
                f"{words}: mend the environment, or catch the error in a wrapper of yours"
            ) from cause


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
