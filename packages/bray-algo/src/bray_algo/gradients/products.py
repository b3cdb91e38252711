"""Products of matrices by the library that is quick on this processor.

Torch leaves products of float32 to MKL, which takes half of what an AMD processor can do whose
AVX-512 is 512 bits wide; oneDNN, which torch brings along as well, takes all of it (93 and 205
GFLOP/s on an EPYC). So large products go there on AMD processors with AVX-512. On Zen 4, which
computes it in halves, both have the same (100 and 106). Which it is, is read from the processor's
name and not measured: a run of the same seed on the same machine has the same numbers.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_CPUINFO = Path("/proc/cpuinfo")
_LEAST = 2**22
"""Multiplications below which a call of oneDNN takes longer than it saves."""


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x Wᵀ + b, `[N, O]`, of inputs `[N, D]`, weights `[O, D]` and `[O]`."""
    if _is_large(x, weight.shape[0]):
        return _onednn(x, weight, bias)
    return functional.linear(x, weight, bias)


def to_inputs(gradient: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient of a layer's inputs `[N, D]` from that of its outputs `[N, O]`."""
    if _is_large(gradient, weight.shape[1]):
        return _onednn(gradient, weight.t())
    return torch.mm(gradient, weight)


def to_weights(gradient: Tensor, x: Tensor, out: Tensor) -> None:
    """Write the gradient of a layer's weights `[O, D]`.

    Args:
        gradient: Gradient of the layer's outputs, `[N, O]`.
        x: Inputs of the layer, `[N, D]`.
        out: Memory to write to.
    """
    if _is_large(gradient, x.shape[1]):
        out.copy_(_onednn(gradient.t(), x.t()))
    else:
        torch.mm(gradient.t(), x, out=out)


@cache
def is_onednn_quicker() -> bool:
    """Return whether oneDNN multiplies quicker than MKL on this processor."""
    has_it = torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    is_wide = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    return has_it and is_wide and _vendor() == "AuthenticAMD"


def _vendor() -> str:
    if not _CPUINFO.exists():
        return ""
    found = re.search(r"^vendor_id\s*:\s*(\S+)", _CPUINFO.read_text(), re.MULTILINE)
    return found[1] if found else ""


def _is_large(matrix: Tensor, other: int) -> bool:
    is_many = matrix.numel() * other >= _LEAST
    return is_many and matrix.dtype == torch.float32 and is_onednn_quicker()


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    # What torch's own compiler calls for a linear layer.
    operation: Any = torch.ops.mkldnn._linear_pointwise.default
    product: Tensor = operation(x, weight, bias, "none", [], "")
    return product
