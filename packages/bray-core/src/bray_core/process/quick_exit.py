"""The end of a command's process, without the second that Python takes to take down torch."""

import atexit
import os
import sys
import threading


def end_process(code: int) -> int:
    """End this process with an exit code, when all that Python promises to do before is done.

    Functions registered with `atexit` have run then, and what was printed is flushed. What Python
    would do after that (free every module's objects, one by one) is left to the operating system.

    Python ends the process in its own way, and the code is returned, where a thread is still to be
    waited for, output cannot be flushed, or a profiler or debugger is looking on.

    Args:
        code: the exit code.
    """
    if sys.getprofile() is not None or sys.gettrace() is not None:
        return code
    here = threading.current_thread()
    if any(thread is not here and not thread.daemon for thread in threading.enumerate()):
        return code
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):  # nobody reads them, or they are closed
        return code
    os._exit(code)
