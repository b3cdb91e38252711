"""How often an environment may raise before a run ends."""

from __future__ import annotations

import logging
from collections import deque

from bray_core import metrics
from bray_core.errors import BrayError

logger = logging.getLogger(__name__)

MAX_ERRORS = 10
"""Errors that an environment may have within the last `WINDOW_STEPS` steps."""
WINDOW_STEPS = 1000
ERROR = "environment_error"
"""Key of the info that says what an environment raised."""
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
