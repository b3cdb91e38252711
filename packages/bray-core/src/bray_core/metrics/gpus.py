"""How busy NVIDIA's GPUs are, as their driver's library tells it (NVML).

The library comes with the driver: no package is needed, and where there is no GPU it is not found.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

_LIBRARY = "libnvidia-ml.so.1"
_MAX_GPUS = 64


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """What one GPU does."""

    index: int
    """Its number on this machine."""
    busy_share: float
    """Share of the last moments in which it computed, 0 to 1."""
    memory_bytes: float
    """Memory that is in use."""


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class Gpus:
    """The GPUs of this machine. Made by `open`.

    Args:
        library: Functions of the driver's library; None: there is no GPU.
    """

    def __init__(self, library: ctypes.CDLL | None) -> None:
        self._library = library
        self._handles: list[tuple[int, ctypes.c_void_p]] = []
        if library is not None:
            self._handles = _handles(library)

    @classmethod
    def open(cls, library: str = _LIBRARY) -> Gpus:
        """Return the GPUs that the driver knows, none where there is no driver."""
        try:
            found = ctypes.CDLL(library)
            if found.nvmlInit_v2():
                return cls(None)
            return cls(found)
        except (OSError, AttributeError):  # no library, or one of another kind
            return cls(None)

    def read(self) -> Sequence[GpuFigures]:
        """Return what each GPU does now; one that does not tell it is left out."""
        found = ((index, self._figures(handle)) for index, handle in self._handles)
        return [GpuFigures(index, *figures) for index, figures in found if figures is not None]

    def _figures(self, handle: ctypes.c_void_p) -> tuple[float, float] | None:
        assert self._library is not None
        busy, memory = _Utilization(), _Memory()
        # A GPU that is split into instances tells no share: then it is left out.
        if self._library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(busy)):
            return None
        if self._library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
            return None
        return busy.gpu / 100, float(memory.used)


def _handles(library: ctypes.CDLL) -> list[tuple[int, ctypes.c_void_p]]:
    count = ctypes.c_uint()
    if library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return []
    found = []
    for index in range(min(count.value, _MAX_GPUS)):
        handle = ctypes.c_void_p()
        if not library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
            found.append((index, handle))
    return found
