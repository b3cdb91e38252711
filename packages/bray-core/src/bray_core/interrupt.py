"""Ending the `bray` command by a signal while there is nothing to clean up.

`bray_core.entry` loads this before any handler is set, and `bray_core.cli` later: it is a module of
its own, so that it loads fast and neither has to import the other.
"""

import os
import sys

from bray_core.outputs import leave_closed_terminal

EXIT_INTERRUPTED = 130
"""Exit code of a command that Ctrl-C, SIGTERM or SIGHUP ended."""


def end_at_once(signum: int, frame: object) -> None:
    """End the process with the exit code of an interrupt."""
    leave_closed_terminal()
    try:  # noqa: SIM105  `contextlib` is not loaded yet
        sys.stdout.flush()
    except Exception:  # noqa: BLE001  a handler's edge: such as when it was being flushed
        pass
    os.write(2, b"stopped\n")
    os._exit(EXIT_INTERRUPTED)
