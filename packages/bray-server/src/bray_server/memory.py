"""How a serving process treats its memory, so that requests need not wait for it."""

from __future__ import annotations

import gc

_LARGE_BLOCK_BYTES = 24 * 1024 * 1024


def keep_freed_memory() -> None:
    """Let the C library keep freed memory for the next requests instead of returning it.

    glibc gives the top of the heap back to the kernel when more than 128 KB of it are free, so
    that many bodies of 64 KB cost a page fault for every 4 KB, again and again: two thirds of the
    throughput. Freeing one large block moves that threshold to twice its size (mallopt(3),
    M_MMAP_THRESHOLD); the block itself is never touched.
    """
    bytes(_LARGE_BLOCK_BYTES)


def freeze_what_stays() -> None:
    """Take what the process has loaded out of the garbage collector's sight.

    With torch loaded a full collection walks 200,000 objects in 0.1 s, during which no tick is
    answered, several times a second under load. For processes that only serve: garbage that is
    there already is collected first, what is made later is collected as ever.
    """
    gc.collect()
    gc.freeze()
