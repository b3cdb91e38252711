"""A terminal that closes, which tells each process that it began: SIGHUP."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def children_ignore_hangups() -> Iterator[None]:
    """Return a context in which processes start that SIGHUP does not end: this one ends them.

    Those that are needed to save what has been learnt would be gone before it is saved.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])  # a child inherits it
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
