"""glibc's heap in processes that compute on the CPU."""

from __future__ import annotations

import ctypes
import os

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST = 256 << 20
"""Bytes: a larger array has pages of its own."""
_MOST_FREE = 1 << 30
"""Bytes at the heap's end, above which they go back to the system."""
_CHOSEN = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed() -> None:
    """Keep large freed arrays for the next ones, as a training step after the other wants them.

    glibc gives them back to the system, which clears each of their pages when they come again: a
    tenth of the time of convolutions. Does nothing with another C library, or where the environment
    says how large is large.
    """
    if any(name in os.environ for name in _CHOSEN):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST)
        mallopt(_M_TRIM_THRESHOLD, _MOST_FREE)


def give_back() -> None:
    """Give what was freed back to the system, after work that needed far more than usual."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
