"""Cores, memory and CPU features of this machine, from which defaults are chosen."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def has_bf16() -> bool:
    """Return whether the CPU multiplies bfloat16 (AVX-512 BF16, AMX); others emulate it."""
    if not _CPUINFO.exists():
        return False
    return re.search(r"\b(avx512_bf16|amx_bf16)\b", _CPUINFO.read_text()) is not None


def memory_bytes() -> int:
    """Return the machine's memory, or what a container may use of it."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    said = limit.read_text().strip() if limit.exists() else "max"
    return found if said == "max" else min(found, int(said))
