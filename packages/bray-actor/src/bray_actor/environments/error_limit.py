"""What follows where an environment raises: it is made anew, so often and no more."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from bray_actor.environments.error_words import RAISED, error_words
from bray_core import metrics
from bray_core.errors import BrayError
from bray_core.process.signal_errors import raise_if_of_signal

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

    def count_error(self, words: str, cause: BaseException) -> None:
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


class Renewal(ErrorLimit):
    """Makes an environment anew where it raised, as often as the limit allows.

    Args:
        make: Function that makes the environment.
        name: What is played.
        reports: Whether errors are counted and logged here.
    """

    seed: int | None = None
    """Seed of the newest reset that brought one; None: none did."""

    def __init__(self, make: Callable[[], Any], name: str, *, reports: bool = True) -> None:
        super().__init__(name)
        self._make = make
        self._reports = reports
        self._num_errors = 0

    def next_seed(self) -> int | None:
        """Return a seed that differs from error to error, the same in each run."""
        return None if self.seed is None else renewed_seed(self.seed, self._num_errors)

    def renew(self, broken: Any, begin: Callable[[Any], None], error: BaseException) -> str:
        """Close the broken environment, make another and begin it; return what the last raised.

        Args:
            broken: What raised.
            begin: Keeps the environment that was made, and resets it where a step may come next.
            error: What was raised.

        Raises:
            BrayError: there were too many errors.
        """
        while True:
            raise_if_of_signal(error)
            words = error_words(error)
            self._num_errors += 1
            if self._reports:
                tell_error(self._name, words)
            self.count_error(words, error)
            try:
                self.close(broken)
                broken = self._make()
                begin(broken)
            except RAISED as another:  # the boundary to code of others
                error = another
            else:
                return words

    def close(self, env: Any) -> None:
        """Close an environment; the log says it where that raises, the first time."""
        try:
            env.close()
        except RAISED as error:  # the boundary to code of others
            raise_if_of_signal(error)
            words = f"close: {error_words(error)}"
            if words not in _logged:
                _logged.add(words)
                logger.warning("environment: %s: %s", self._name, words)


def renewed_seed(seed: int, num_errors: int) -> int:
    """Return the seed of what begins after so many errors, by that of what began first."""
    return (seed + _SEED_STEP * num_errors) % 2**31
