"""What an environment raised, in one line."""

from __future__ import annotations

import re

from bray_core.process.raised_words import raised_words

RAISED = (Exception, SystemExit)
"""What an environment may raise: some games end the program where a window is closed."""
_OLD_RESET = re.compile(r"reset\(\) got an unexpected keyword argument '(seed|options)'")


def error_words(error: BaseException) -> str:
    """Return what an environment raised, where, and the cure where that is known.

    Args:
        error: Exception that was caught.
    """
    words = raised_words(error)
    if isinstance(error, TypeError) and _OLD_RESET.search(words):
        return f"{words}: write `def reset(self, *, seed=None, options=None)`"
    return words
