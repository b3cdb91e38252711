"""What code of others raised, in one line that says where."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from traceback import walk_tb
from types import FrameType

from bray_core.errors import BrayError

_LONGEST = 300
_FROZEN = "<frozen"
_INSTALLED = tuple({str(Path(sysconfig.get_path(name))) for name in ("stdlib", "purelib")})


def raised_words(error: BaseException) -> str:
    """Return what was raised, with the file and line of the code that raised it.

    The line is the innermost one that is of no installed package: a mistake shows in a library, and
    is made in the code that called it. What bray raised says itself what is wrong.

    Args:
        error: Exception that was caught.
    """
    words = f"{type(error).__name__}: {error}".strip().splitlines()[0][:_LONGEST]
    if isinstance(error, BrayError):
        return words
    place = place_of_others(error) or _innermost(error)
    return f"{words} ({place})" if place else words


def place_of_others(error: BaseException) -> str | None:
    """Return the innermost line that is neither bray's nor of an installed package; None of none.

    Args:
        error: Exception that was caught.
    """
    lines = reversed([*walk_tb(error.__traceback__)])
    return next((_place(*one) for one in lines if _is_of_others(one[0])), None)


def _innermost(error: BaseException) -> str | None:
    """Return the innermost line, of whatever package; None where that is bray's or a loader's."""
    lines = [*walk_tb(error.__traceback__)]
    if not lines or _is_of_bray(lines[-1][0]):
        return None
    if lines[-1][0].f_code.co_filename.startswith(_FROZEN):
        return None
    return _place(*lines[-1])


def _place(frame: FrameType, number: int) -> str:
    code = frame.f_code
    return f"{Path(code.co_filename).name}, line {number}, in {code.co_name}"


def _is_of_others(frame: FrameType) -> bool:
    """Return whether a line is neither bray's nor of an installed package."""
    path = Path(frame.f_code.co_filename)
    is_loader = path.name.startswith(_FROZEN)
    return not (_is_of_bray(frame) or is_loader or any(map(path.is_relative_to, _INSTALLED)))


def _is_of_bray(frame: FrameType) -> bool:
    """Return whether a line is of a package of bray; a lone file `bray_….py` is its user's."""
    package = str(frame.f_globals.get("__package__") or "").partition(".")[0]
    return package == "bray" or package.startswith("bray_")
