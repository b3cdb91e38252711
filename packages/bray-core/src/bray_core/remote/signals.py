"""SIGTERM and SIGHUP while Ray runs: the program's own handlers stay, never Ray's."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

from ray._private import utils as ray_utils

from bray_core.process.hangups import children_ignore_hangups


@contextlib.contextmanager
def keep_sigterm_handler() -> Iterator[None]:
    """Keep Ray from installing its SIGTERM handler, which drains the node and exits.

    A program without a handler of its own gets one that exits, so that a run cleans up; it stays
    until `release_sigterm`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit_by_signal)
    handler = signal.getsignal(signal.SIGTERM)
    ray_utils.set_sigterm_handler, before = lambda handler: None, ray_utils.set_sigterm_handler
    try:
        with children_ignore_hangups():
            yield
    finally:
        ray_utils.set_sigterm_handler = before
        if handler is not None:  # anew: a handler in C++ before it would print a stack of its own
            signal.signal(signal.SIGTERM, handler)


def release_sigterm() -> None:
    """Undo what `keep_sigterm_handler` left behind in a program without a handler of its own."""
    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is _exit_by_signal
    ):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit_by_signal(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
