"""Processes that lose their parent become children of this one (Linux), and are ended.

Ray's raylet starts agents of its own. If it is killed while Ray starts, they would go to process 1
and linger for a minute.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_TIMEOUT_S = 2.0


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parent dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_children(is_mine: Callable[[str], bool]) -> None:
    """Kill the children whose command line `is_mine` accepts, until none is left."""
    if sys.platform != "linux":
        return
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:
        children = [pid for pid in _children() if is_mine(_command(pid))]
        if not children:
            break
        for pid in children:
            _kill(pid)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass  # ended, or taken by whoever started it


def _children() -> list[int]:
    return [
        int(child)
        for task in Path("/proc/self/task").iterdir()
        for child in (task / "children").read_text().split()
    ]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
