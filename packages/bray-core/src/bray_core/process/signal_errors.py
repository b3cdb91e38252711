"""Exceptions by which a signal ends the program, raised within whatever code ran just then.

try:
    environment.step(action)
except (Exception, SystemExit) as error:
    raise_if_of_signal(error)   # the program is told to end: not the environment's fault
"""

from __future__ import annotations

import signal
from traceback import walk_tb

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def raise_if_of_signal(error: BaseException) -> None:
    """Raise an exception again that this program's handler of a signal raised, such as an exit.

    Args:
        error: Exception that was caught around code of others.
    """
    handlers = [signal.getsignal(number) for number in _ENDING]
    codes = {getattr(handler, "__code__", None) for handler in handlers} - {None}
    if any(frame.f_code in codes for frame, _ in walk_tb(error.__traceback__)):
        raise error
