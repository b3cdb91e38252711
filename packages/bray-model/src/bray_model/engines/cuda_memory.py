"""Memory of a GPU, by NVIDIA's own bindings: what TensorRT computes on, without torch."""

from __future__ import annotations

import weakref
from typing import Any

from cuda.bindings import runtime as cudart

from bray_core.errors import ConfigError
from bray_model.tree_spec import Leaf

_TO_GPU = cudart.cudaMemcpyKind.cudaMemcpyHostToDevice
_TO_HOST = cudart.cudaMemcpyKind.cudaMemcpyDeviceToHost


def gpu_name() -> str:
    """Return the name of the first GPU.

    Raises:
        ConfigError: there is none that CUDA can use.
    """
    try:
        name: bytes = _checked(cudart.cudaGetDeviceProperties(0)).name
    except RuntimeError as error:
        raise ConfigError(
            f"device='cuda': no GPU that CUDA can use ({error}): install the NVIDIA driver, or "
            "leave device and backend at their defaults"
        ) from error
    return name.decode()


class CudaStream:
    """Work that the GPU does in order."""

    def __init__(self) -> None:
        stream = _checked(cudart.cudaStreamCreate())
        self.handle = int(stream)
        weakref.finalize(self, cudart.cudaStreamDestroy, stream)

    def wait(self) -> None:
        """Block until all of it is done."""
        _checked(cudart.cudaStreamSynchronize(self.handle))


class CudaBuffer:
    """A block of the GPU's memory, freed with this object."""

    def __init__(self, nbytes: int) -> None:
        self.address = int(_checked(cudart.cudaMalloc(max(nbytes, 1))))
        weakref.finalize(self, cudart.cudaFree, self.address)

    def fill(self, array: Leaf, stream: CudaStream) -> None:
        """Copy a C-contiguous array here; it must live until the stream has done it."""
        source = array.ctypes.data
        _checked(cudart.cudaMemcpyAsync(self.address, source, array.nbytes, _TO_GPU, stream.handle))

    def read(self, array: Leaf, stream: CudaStream) -> None:
        """Copy this into a C-contiguous array, which holds it once the stream has done it."""
        target = array.ctypes.data
        _checked(
            cudart.cudaMemcpyAsync(target, self.address, array.nbytes, _TO_HOST, stream.handle)
        )


def _checked(result: tuple[Any, ...]) -> Any:
    """Return the value of a call to CUDA, if it has one, or raise what it says."""
    code, *values = result
    if code != cudart.cudaError_t.cudaSuccess:
        text: bytes = cudart.cudaGetErrorString(code)[1]
        raise RuntimeError(f"CUDA: {text.decode()}")
    return values[0] if values else None
