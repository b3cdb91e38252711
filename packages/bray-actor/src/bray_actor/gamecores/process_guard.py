"""Runs a command, and ends it and all that it started when the process that asked for it is gone.

    python process_guard.py COMMAND [WORD …]

It leads a process group, which the command belongs to, and reads a pipe whose other end the asking
process holds. It is a program of its own, without imports of bray: it starts within milliseconds.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

_GRACE_S = 2.0
_parent_is_gone = threading.Event()


def main(words: list[str]) -> int:
    """Run the command; return its code, as a shell does."""
    signal.signal(signal.SIGTERM, lambda *_: None)  # the command gets it, too, and decides
    try:
        command = subprocess.Popen(words, stdin=subprocess.DEVNULL)
    except OSError as error:
        sys.stderr.write(f"{words[0]}: {error.strerror}\n")
        sys.stderr.flush()
        return 127
    threading.Thread(target=_end_with_parent, daemon=True).start()
    code = command.wait()
    if _parent_is_gone.is_set():  # then the other thread ends all that is left, and this
        time.sleep(2 * _GRACE_S)
    return code if code >= 0 else 128 - code


def _end_with_parent() -> None:
    while os.read(0, 1024):  # nothing, when nobody holds the other end any more
        pass
    _parent_is_gone.set()
    os.killpg(0, signal.SIGTERM)
    time.sleep(_GRACE_S)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # at once: a thread is reading
