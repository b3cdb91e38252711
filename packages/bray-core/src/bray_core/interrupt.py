"""How a signal ends the `bray` command where nothing has to be cleaned up: in one line.

`bray_core.entry` loads this before any handler is set: so it imports nothing that has to be read
from disk.
"""

import os
import sys

EXIT_INTERRUPTED = 130
"""Exit code of a command that Ctrl-C or SIGTERM ended."""


def end_at_once(signum: int, frame: object) -> None:
    """End the process with the exit code of an interrupt."""
    try:  # noqa: SIM105  `contextlib` is not loaded yet
        sys.stdout.flush()
    except Exception:  # noqa: BLE001  a handler's edge: such as when it was being flushed
        pass
    os.write(2, b"stopped\n")
    os._exit(EXIT_INTERRUPTED)
