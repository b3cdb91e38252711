"""What code of others raised, in one line that says where."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path
from traceback import FrameSummary, extract_tb

from bray_core.errors import BrayError

_LONGEST = 300
_INSTALLED = tuple({str(Path(sysconfig.get_path(name))) for name in ("stdlib", "purelib")})
_OLD_RESET = re.compile(r"reset\(\) got an unexpected keyword argument '(seed|options)'")
_OWN = Path(__file__).parents[1]


def error_words(error: BaseException) -> str:
    """Return what was raised, with the file and line of the code that raised it.

    The line is the innermost one that is of no installed package: a mistake shows in a library, and
    is made in the code that called it. What bray raised says itself what is wrong.

    Args:
        error: Exception that was caught.
    """
    words = f"{type(error).__name__}: {error}".strip().splitlines()[0][:_LONGEST]
    frames = extract_tb(error.__traceback__)
    if isinstance(error, TypeError) and _OLD_RESET.search(words):
        return f"{words}: write `def reset(self, *, seed=None, options=None)`"
    if isinstance(error, BrayError) or not frames:
        return words
    place = next(filter(_is_of_others, reversed(frames)), frames[-1])
    return f"{words} ({Path(place.filename).name}, line {place.lineno}, in {place.name})"


def _is_of_others(frame: FrameSummary) -> bool:
    """Return whether a line is neither bray's nor of an installed package."""
    path = Path(frame.filename)
    return not (path.is_relative_to(_OWN) or any(map(path.is_relative_to, _INSTALLED)))
