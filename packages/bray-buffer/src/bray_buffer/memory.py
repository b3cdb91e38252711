"""Memory that is taken only once it is written: for rows of which few may ever be needed."""

from __future__ import annotations

import mmap

import numpy as np

from bray_core.errors import CapacityError
from bray_core.layout import Block

_NO_RESERVE = 0x4000
"""Linux' MAP_NORESERVE, which Python 3.11 does not name: no page is set aside before its use."""


def reserve(rows: int, nbytes: int) -> Block:
    """Return zeroed rows `[rows, nbytes]`; a page takes memory from its first write on.

    Raises:
        CapacityError: the system refuses as much address space.
    """
    total = rows * nbytes
    try:
        memory = mmap.mmap(-1, total, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    except (OSError, OverflowError, ValueError) as error:
        raise CapacityError(
            f"capacity: the system refuses {total} bytes of address space ({error}): lower it"
        ) from error
    memory.madvise(mmap.MADV_HUGEPAGE)  # random rows: fewer misses of the address cache
    return np.frombuffer(memory, np.uint8).reshape(rows, nbytes)
