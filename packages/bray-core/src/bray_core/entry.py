"""The first moments of the `bray` command, in which a signal already ends it in one line.

Until `main` has begun, Ctrl-C is Python's own, which prints a traceback: so this imports nothing
more (not even `signal`, which reads `enum`); all else comes after.
"""

import _signal  # type: ignore[import-not-found]

from bray_core.interrupt import end_at_once

_SIGNALS = (_signal.SIGINT, _signal.SIGTERM)


def main() -> int:
    """Run the command of this process and return its exit code; see `bray_core.cli.main`."""
    for number in _SIGNALS:
        if _signal.getsignal(number) != _signal.SIG_IGN:
            _signal.signal(number, end_at_once)
    from bray_core import cli

    return cli.main()
