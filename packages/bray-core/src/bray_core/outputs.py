"""Standard output and standard error of the `bray` command, where a write would raise.

`bray_core.entry` loads this before anything else, so that it imports almost nothing.
"""

import io
import os
import sys
from stat import S_ISCHR

TYPE_CHECKING = False  # `typing` is not loaded yet
if TYPE_CHECKING:
    from typing_extensions import Buffer

_OUTPUTS = (1, 2)


def let_outputs_take_all() -> None:
    """Let outputs take every character, whatever the locale, and anything where they are closed.

    Where a terminal closes, what is written goes nowhere instead of raising: a command that the
    terminal's SIGHUP does not reach, such as one in the background of its shell, goes on; one that
    it does reach may write before the signal comes.
    """
    for name in ("stdout", "stderr"):
        output = getattr(sys, name)
        if output is None:  # closed by who started this process: `>&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  it stays open
            continue
        output.reconfigure(errors="backslashreplace")
        if output.isatty():
            setattr(sys, name, _terminal_that_may_close(output))


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


def _terminal_that_may_close(output: io.TextIOWrapper) -> io.TextIOWrapper:
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
