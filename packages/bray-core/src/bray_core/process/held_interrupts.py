"""Ctrl-C that waits until what must not be torn is done.

    with held_interrupts():
        train()              # Ctrl-C is noted
    count()
    deliver_interrupt()      # here it is raised, if one came

A step of training that is torn leaves weights of which no checkpoint can be written. Whoever waits
between two steps calls `deliver_interrupt` too: a wait may last, and nothing is torn there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

from bray_core.outputs import leave_closed_terminal

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_WORDS = b"stopping after what is being trained on now; Ctrl-C once more stops at once, unsaved\n"
_held: Callable[[], Any] | None = None
"""Hands the signal that was held to the handler that it was for."""
_is_raised = False
"""Whether `deliver_interrupt` raised what was held, rather than a handler within a step."""


@dataclass(slots=True)
class Held:
    """What has become of a context of `held_interrupts`."""

    is_torn: bool = False
    """Whether an interrupt ended it that was not raised by `deliver_interrupt`."""


@contextlib.contextmanager
def held_interrupts() -> Iterator[Held]:
    """Return a context within which the first Ctrl-C, SIGTERM or SIGHUP is held, no second one.

    Only handlers in Python are kept waiting, such as the one that raises KeyboardInterrupt. Threads
    other than the main one are never interrupted: there it changes nothing.
    """
    global _held, _is_raised
    context = Held()
    if threading.current_thread() is not threading.main_thread():
        yield context
        return
    _held, _is_raised = None, False
    handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}

    def hold(number: int, frame: FrameType | None) -> None:
        global _held
        if _held is not None:
            _held = None
            handlers[number](number, frame)
            return
        _held = partial(handlers[number], number, None)
        leave_closed_terminal()
        os.write(2, _WORDS)

    for number in _SIGNALS:
        handler = signal.getsignal(number)
        if callable(handler):
            handlers[number] = handler
            signal.signal(number, hold)
    try:
        yield context
    except KeyboardInterrupt:
        context.is_torn = not _is_raised
        raise
    finally:
        for held, handler in handlers.items():
            signal.signal(held, handler)


def deliver_interrupt() -> None:
    """Let the signal that was held do what it would have done; most often KeyboardInterrupt.

    In threads other than the main one, which are never interrupted, it does nothing.
    """
    global _held, _is_raised
    if threading.current_thread() is not threading.main_thread():
        return
    held, _held = _held, None
    if held is not None:
        _is_raised = True
        held()
        _is_raised = False  # a handler that raises nothing
