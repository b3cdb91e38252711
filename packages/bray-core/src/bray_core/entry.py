"""Entry point of the `bray` command, which handles signals before anything else is imported.

Until `main` has begun, Ctrl-C is Python's own and prints a traceback. So this module imports almost
nothing (not even `signal`, which loads `enum`).
"""

import _signal  # type: ignore[import-not-found]
import os
import sys

from bray_core.interrupt import end_at_once, terminal_that_may_close

_SIGNALS = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP)


def main() -> int:
    """Run the command of this process, and end it or return its exit code.

    See `bray_core.cli.main` and `bray_core.process.quick_exit`.
    """
    for number in _SIGNALS:
        if _signal.getsignal(number) != _signal.SIG_IGN:
            _signal.signal(number, end_at_once)
    _let_outputs_take_all()
    from bray_core.process.machine import limit_threads

    limit_threads()
    from bray_core import cli

    code = cli.main()
    from bray_core.process.quick_exit import end_process

    return end_process(code)


def _let_outputs_take_all() -> None:
    """Let outputs take every character, whatever the locale, and anything where they are closed."""
    for name in ("stdout", "stderr"):
        output = getattr(sys, name)
        if output is None:  # closed by who started this process: `>&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  it stays open
            continue
        output.reconfigure(errors="backslashreplace")
        if output.isatty():
            setattr(sys, name, terminal_that_may_close(output))
