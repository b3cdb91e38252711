"""What every gamecore that is a process of its own does: it outlives neither parent nor server."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout

from bray_core.errors import BrayError, ServiceError
from bray_core.metrics import uplink

_GONE = ("connection_lost", "unreachable", "draining")
_STDOUT, _STDERR = 1, 2
"""File descriptors."""
_RETRY_AFTER_S = (0.1, 0.2, 0.4, 0.8, 1.6)
"""Pauses before a server that is gone is tried again; then it is taken to be gone for good."""


def die_with_parent(parent: int | None) -> None:
    """Ask Linux to end this process with the thread that started it, however that went.

    Args:
        parent: Id of the process that must not be outlived; None takes whatever started this one.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # 1 is PR_SET_PDEATHSIG
    if parent is not None and os.getppid() != parent:  # it went before we could ask
        sys.exit(0)


def play_on(game: Callable[[], object]) -> None:
    """Play until the server is gone for good: one that restarts is found again.

    Args:
        game: Function that plays until the server is gone.

    Raises:
        ServiceError: the server answered with an error.
    """
    pauses = list(_RETRY_AFTER_S)
    while True:
        began = time.monotonic()
        try:
            game()
        except ServiceError as error:
            if error.code not in _GONE:
                raise
            if time.monotonic() - began > sum(_RETRY_AFTER_S):  # it was there until now
                pauses = list(_RETRY_AFTER_S)
            if not pauses:
                return
            time.sleep(pauses.pop(0))


def add_process_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that every gamecore process takes.

    Args:
        parser: Parser of the process, which adds what it plays and how often.
    """
    parser.add_argument("--address", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lane-offset", type=int, default=0)
    parser.add_argument("--delta", action="store_true", help="delta encoding, over tcp")
    parser.add_argument("--json", action="store_true", help="print {'returns': […]} at the end")
    parser.add_argument("--parent", type=int, help="id of the process that must not be outlived")


def run_process(
    game: Callable[[], object], options: argparse.Namespace, *, lanes: int, is_endless: bool
) -> int:
    """Play as a process of its own: quiet when it is ended, one line on errors.

    Args:
        game: Function that plays, and returns the returns.
        options: Values of the arguments that `add_process_arguments` adds.
        lanes: Number of lanes that the process plays.
        is_endless: Whether `game` plays until the server is gone.

    Returns:
        The code with which the process shall end.
    """
    try:
        # Not an exit: a game that calls `sys.exit` is made anew and played on.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        die_with_parent(options.parent)
        uplink.join("gamecore", options.lane_offset // max(1, lanes))
        with _only_the_answer_is_printed(options.json):
            if is_endless:
                play_on(game)
                return 0
            returns = game()
    except BrayError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 0
    if options.json:
        sys.stdout.write(json.dumps({"returns": returns}) + "\n")
    return 0


@contextmanager
def _only_the_answer_is_printed(is_wanted: bool) -> Iterator[None]:
    """Send what a game prints to standard error, also from C++: the answer stands alone."""
    if not is_wanted:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, _STDOUT)
        os.close(kept)
