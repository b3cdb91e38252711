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


def main(words: list[str]) -> int:
    """Run the command; return its code, as a shell does."""
    signal.signal(signal.SIGTERM, lambda *_: None)  # the command gets it, too, and decides
    try:
        command = subprocess.Popen(words, stdin=subprocess.DEVNULL)
    except OSError as error:
        sys.stderr.write(f"{words[0]}: {error.strerror}\n")
        return 127
    watch = threading.Thread(target=_end_with_parent, daemon=True)
    watch.start()
    code = command.wait()
    return code if code >= 0 else 128 - code


def _end_with_parent() -> None:
    sys.stdin.buffer.read()  # returns when nobody holds the other end any more
    os.killpg(0, signal.SIGTERM)
    time.sleep(_GRACE_S)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
