"""Entry point of the `bray` command, which handles signals before anything else is imported.

Until `main` has begun, Ctrl-C is Python's own and prints a traceback. So this module imports almost
nothing (not even `signal`, which loads `enum`).
"""

import _signal  # type: ignore[import-not-found]

from bray_core.interrupt import end_at_once
from bray_core.outputs import let_outputs_take_all

_SIGNALS = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP)


def main() -> int:
    """Run the command of this process, and end it or return its exit code.

    See `bray_core.cli.main` and `bray_core.process.quick_exit`.
    """
    for number in _SIGNALS:
        if _signal.getsignal(number) != _signal.SIG_IGN:
            _signal.signal(number, end_at_once)
    let_outputs_take_all()
    from bray_core.process.machine import limit_threads

    limit_threads()
    from bray_core import cli

    code = cli.main()
    from bray_core.process.quick_exit import end_process

    return end_process(code)
