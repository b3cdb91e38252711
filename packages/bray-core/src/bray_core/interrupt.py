"""Ending the `bray` command by a signal while there is nothing to clean up; a terminal that closed.

`bray_core.entry` loads this before any handler is set, and `bray_core.cli` later: it is a module of
its own, so that it loads fast and neither has to import the other.
"""

import io
import os
import sys
from stat import S_ISCHR

TYPE_CHECKING = False  # `typing` is not loaded yet
if TYPE_CHECKING:
    from typing_extensions import Buffer

EXIT_INTERRUPTED = 130
"""Exit code of a command that Ctrl-C, SIGTERM or SIGHUP ended."""
_OUTPUTS = (1, 2)


def end_at_once(signum: int, frame: object) -> None:
    """End the process with the exit code of an interrupt."""
    leave_closed_terminal()
    try:  # noqa: SIM105  `contextlib` is not loaded yet
        sys.stdout.flush()
    except Exception:  # noqa: BLE001  a handler's edge: such as when it was being flushed
        pass
    os.write(2, b"stopped\n")
    os._exit(EXIT_INTERRUPTED)


def leave_closed_terminal() -> None:
    """Let what would be written to a terminal that has closed go nowhere: writing to it raises."""
    for descriptor in _OUTPUTS:
        try:
            is_device = S_ISCHR(os.fstat(descriptor).st_mode)
        except OSError:  # closed
            continue
        if is_device and not os.isatty(descriptor):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, descriptor)
            os.close(null)


def terminal_that_may_close(output: io.TextIOWrapper) -> io.TextIOWrapper:
    """Return an output whose writes go nowhere, instead of raising, once its terminal has closed.

    A command that the terminal's SIGHUP does not reach, such as one in the background of its shell,
    goes on; one that it does reach may write before the signal comes.

    Args:
        output: Standard output or standard error, which is a terminal.
    """
    return io.TextIOWrapper(
        io.BufferedWriter(_Terminal(output.fileno(), "w", closefd=False)),
        encoding=output.encoding,
        errors=output.errors,
        line_buffering=output.line_buffering,
        write_through=output.write_through,
    )


class _Terminal(io.FileIO):
    def write(self, data: "Buffer", /) -> int:
        try:
            return super().write(data)
        except OSError:
            leave_closed_terminal()
            return super().write(data)
