"""CPU and memory of a process, recorded with every window, by component."""

from __future__ import annotations

import os
import time
from pathlib import Path

from bray_core.metrics import Registry

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessMetrics:
    """Records cores and memory of this process.

    Args:
        registry: Registry to record into.
        component: What this process is, such as the name of its pool.
    """

    def __init__(self, registry: Registry, component: str) -> None:
        self._registry = registry
        self._component = component
        self._then = time.monotonic(), time.process_time()

    def record(self) -> None:
        """Record the cores that were busy since the last call, and the memory that is held."""
        now = time.monotonic(), time.process_time()
        passed_s, busy_s = now[0] - self._then[0], now[1] - self._then[1]
        record, component = self._registry.record, self._component
        if passed_s > 0:
            record("process/cpu_cores", busy_s / passed_s, component=component)
        memory = _memory_bytes()
        if memory is not None:
            record("process/memory_bytes", memory, component=component)
        self._then = now


def _memory_bytes() -> float | None:
    try:
        return float(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
    except OSError:  # not Linux
        return None
