"""Memory of this process: glibc's heap, and Python's garbage collector."""

from __future__ import annotations

import ctypes
import gc
import os

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST = 256 << 20
"""Bytes above which an array has pages of its own."""
_MOST_FREE = 1 << 30
"""Free bytes at the heap's end above which they go back to the system."""
_CHOSEN = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")
_FREED_AT_ONCE = 4 << 20
"""Bytes above which a server's block goes back to the system as soon as it is freed."""
_FREE_FOR_REQUESTS = 32 << 20
_keeps_all = False


def keep_freed() -> None:
    """Keep the memory of freed arrays for the next training step.

    glibc gives them back to the system, which clears each of their pages when they come again: a
    tenth of the time of convolutions. Does nothing with another C library, or where the environment
    sets the sizes itself.
    """
    global _keeps_all
    if _tune(_LARGEST, _MOST_FREE):
        _keeps_all = True


def keep_small_freed() -> None:
    """Keep the memory of usual requests for the next ones, and give back that of large ones.

    Left alone, glibc gives the top of the heap back when more than 128 KB of it are free, so that
    many bodies of 64 KB cost a page fault for every 4 KB, again and again: two thirds of a
    server's throughput. Does nothing in a process that called `keep_freed`, and where that does
    nothing.
    """
    if not _keeps_all:
        _tune(_FREED_AT_ONCE, _FREE_FOR_REQUESTS)


def give_back() -> None:
    """Return freed memory to the system, once much of it will not be used again.

    glibc returns by itself what is free at a heap's end; what lies between blocks in use stays with
    the process. Takes milliseconds, in which other threads go on. Does nothing with another C
    library.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def keeps_freed() -> bool:
    """Return whether `keep_freed` was called in this process."""
    return _keeps_all


def freeze_loaded_objects() -> None:
    """Exclude all objects there are from garbage collection, in a process that only serves.

    With torch loaded a full collection walks 200,000 objects in 0.1 s, during which no tick is
    answered, several times a second under load. Garbage is collected before; objects that are
    made later are collected as ever.
    """
    gc.collect()
    gc.freeze()


def _tune(mmap_threshold: int, trim_threshold: int) -> bool:
    if any(name in os.environ for name in _CHOSEN):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    mallopt(_M_MMAP_THRESHOLD, mmap_threshold)
    mallopt(_M_TRIM_THRESHOLD, trim_threshold)
    return True
