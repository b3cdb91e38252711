"""The `bray` command: it runs a subcommand, and ends in one line when a signal tells it to.

A signal is handled by what is going on: until there is something to clean up it ends the process at
once (`bray_core.entry`); then it raises KeyboardInterrupt in the subcommand; and once that is done
it ends the process at once again. Parsing and subcommands are in `bray_core.command`.
"""

from __future__ import annotations

import _thread
import errno
import os
import signal
import sys
import time

from bray_core import lazy
from bray_core.interrupt import EXIT_INTERRUPTED, end_at_once
from bray_core.outputs import leave_closed_terminal

TYPE_CHECKING = False  # as `typing` says it, which takes ten milliseconds to load
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType
    from typing import Any, NoReturn

    from bray_core.command import EXIT_ERROR, Command

__all__ = ["EXIT_ERROR", "EXIT_INTERRUPTED", "Command", "check_interrupted", "main"]

_CLEAN_UP_S = 20.0
"""Time that a command has to clean up after Ctrl-C; then its process ends, its children with it. A
trainer finishes its replay, which takes seconds with convolutions; ended earlier, it would leave
shared memory behind."""
_RETRY_S = 0.02
_MAX_IMPORT_S = 10.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

__getattr__, __dir__ = lazy.attach(
    __name__,
    {"Command": "bray_core.command", "EXIT_ERROR": "bray_core.command"},
)

_interrupted_s: float | None = None
"""Time of the first signal; None before it."""
_is_due = False
"""Whether a signal that came at a bad moment is about to be sent again."""
_main_thread = 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit code.

    A `BrayError`, and what code of a user raised, become one line on standard error and exit code
    2 (`BRAY_DEBUG=1` shows where it came from); Ctrl-C, SIGTERM and SIGHUP end with 130 after the
    command has cleaned up.
    """
    before = _handle(end_at_once)  # nothing is there yet that would have to be cleaned up
    hook = sys.unraisablehook
    try:
        sys.unraisablehook = _resend_interrupts(hook)
        code = _run(sys.argv[1:] if arguments is None else arguments)
    finally:
        sys.unraisablehook = hook
        if arguments is None:  # the process ends now
            _handle(end_at_once)
        else:
            for number, handler in before.items():
                signal.signal(number, handler)
    return code


def _run(arguments: Sequence[str]) -> int:
    from bray_core.command import EXIT_ERROR, parse
    from bray_core.errors import BrayError

    try:
        try:
            options = parse(arguments)
        finally:
            sys.stdout.flush()  # `--help` ends here
        _handle(_interrupt)
        code: int = options.command.run(options)
        sys.stdout.flush()
        check_interrupted()  # by a signal that the command has lost
    except KeyboardInterrupt as interrupt:
        _stop(interrupt)
    except BrokenPipeError:  # the reader of our output is gone, such as `head`
        _drop_output()
        return EXIT_ERROR
    except Exception as error:
        if os.environ.get("BRAY_DEBUG"):
            raise
        if _interrupted_s is not None:  # a library may turn the interrupt into an error of its own
            _stop(error)
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            words: str | None = f"{error}: make room, or write elsewhere"
            _drop_output()
        else:
            words = str(error) if isinstance(error, BrayError) else _words_of_others(error)
        if words is None:  # a fault of bray's own, or of a library that it called
            raise
        from bray_core.files.escaping import escape_unprintable_lines

        sys.stderr.write(f"error: {escape_unprintable_lines(words)}\n")
        _say_notes(error)
        return EXIT_ERROR
    return code


def _drop_output() -> None:
    """Let what cannot be printed, and is still in a buffer, go nowhere."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _words_of_others(error: Exception) -> str | None:
    """Return in one line what code of a user raised; None of what bray or a library alone did."""
    from bray_core.process.raised_words import place_of_others, raised_words

    if place_of_others(error) is None:
        return None
    where = "BRAY_DEBUG=1 shows the whole traceback, as the bray.log of a trial does"
    return f"your code raised {raised_words(error)}: {where}"


def _stop(how: BaseException) -> NoReturn:
    """End the process; what went wrong while the command cleaned up is said."""
    _handle(signal.SIG_IGN)
    _say_notes(how)
    sys.stderr.write("stopped\n")
    sys.stdout.flush()
    sys.stderr.flush()
    # The command has cleaned up; a C++ library that was interrupted half-way through its
    # start (Ray, torch) may crash or hang while the interpreter is taken down.
    os._exit(EXIT_INTERRUPTED)


def _say_notes(error: BaseException) -> None:
    """Say what was noted beside an error, such as what failed while the command cleaned up."""
    from bray_core.files.escaping import escape_unprintable_lines

    for note in getattr(error, "__notes__", []):
        sys.stderr.write(f"{escape_unprintable_lines(str(note))}\n")


def _handle(handler: Any) -> dict[int, Any]:
    """Set a handler of Ctrl-C, SIGTERM and SIGHUP; a signal that is ignored stays ignored.

    Returns the handlers before; none in a thread other than the main one, which alone has handlers.
    """
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    changed: dict[int, Any] = {
        number: known
        for number, known in before.items()
        if known is not None and known is not signal.SIG_IGN
    }
    for number in changed:
        signal.signal(number, handler)
    return changed


def _interrupt(signum: int, frame: FrameType | None) -> None:
    global _interrupted_s, _is_due, _main_thread
    leave_closed_terminal()
    _main_thread = _thread.get_ident()  # handlers run in no other
    if _interrupted_s is None:
        _interrupted_s = time.monotonic()
        _thread.start_new_thread(_give_up, ())  # of `threading` the signal may have found a lock
    _is_due = False
    # An interrupt within an import may be lost, or end the process by a C++ library's hand.
    if _is_importing(frame) and time.monotonic() < _interrupted_s + _MAX_IMPORT_S:
        _send_again(signum)
        return
    raise KeyboardInterrupt


def _is_importing(frame: FrameType | None) -> bool:
    """Return whether the command is importing a module."""
    while frame is not None and frame.f_code is not _run.__code__:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _send_again(signum: int) -> None:
    global _is_due
    if not _is_due:
        _is_due = True
        _thread.start_new_thread(_send_late, (signum, _main_thread))


def _send_late(signum: int, thread: int) -> None:
    time.sleep(_RETRY_S)
    signal.pthread_kill(thread, signum)  # it wakes a thread that sleeps, too


def _resend_interrupts(hook: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a hook for errors in destructors, where an interrupt would be printed and lost."""

    def told(unraisable: Any) -> None:
        if isinstance(unraisable.exc_value, KeyboardInterrupt) and _interrupted_s is not None:
            _send_again(signal.SIGINT)
        else:
            hook(unraisable)

    return told


def _give_up() -> None:
    time.sleep(_CLEAN_UP_S)
    os.write(2, b"stopped by force: cleaning up took too long\n")
    os._exit(EXIT_INTERRUPTED)


def check_interrupted() -> None:
    """Raise KeyboardInterrupt if Ctrl-C came but got lost, as in a destructor. Call it in loops."""
    if _interrupted_s is not None:
        raise KeyboardInterrupt


if __name__ == "__main__":
    # The module that commands import, not this second copy: `check_interrupted` looks there.
    from bray_core import cli
    from bray_core.outputs import let_outputs_take_all
    from bray_core.process.quick_exit import end_process

    let_outputs_take_all()
    sys.exit(end_process(cli.main()))
