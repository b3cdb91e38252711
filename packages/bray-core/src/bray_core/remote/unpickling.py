"""Unpickling what came from within the cluster, by one thread of a process at a time.

What is unpickled names classes, and so imports modules. Of two threads, one may import a package
and the other a part of it, which waits for the package while the package waits for the part; Python
then ends one of them with a `_DeadlockError`. So it was with a worker given two models at once.
"""

from __future__ import annotations

import threading
from typing import Any

from ray import cloudpickle

_lock = threading.RLock()


def unpickled(data: bytes) -> Any:
    """Return an object that a process of the same cluster pickled, as an argument of a Ray call."""
    with _lock:
        return cloudpickle.loads(data)
