"""The first moments of the `bray` command, in which a signal already ends it in one line.

Until `main` has begun, Ctrl-C is Python's own, which prints a traceback: so this imports nothing
that has to be read from disk (not even `signal`, which reads `enum`); all else comes after.
"""

import _signal  # type: ignore[import-not-found]
import os
import sys

EXIT_INTERRUPTED = 130
_SIGNALS = (_signal.SIGINT, _signal.SIGTERM)


def main() -> int:
    """Run the command of this process and return its exit code; see `bray_core.cli.main`."""
    for number in _SIGNALS:
        if _signal.getsignal(number) != _signal.SIG_IGN:
            _signal.signal(number, end_at_once)
    from bray_core import cli

    return cli.main()


def end_at_once(signum: int, frame: object) -> None:
    """End the process with the exit code of an interrupt: where nothing has to be cleaned up."""
    try:  # noqa: SIM105  `contextlib` is not loaded yet
        sys.stdout.flush()
    except Exception:  # noqa: BLE001  a handler's edge: such as when it was being flushed
        pass
    os.write(2, b"stopped\n")
    os._exit(EXIT_INTERRUPTED)
