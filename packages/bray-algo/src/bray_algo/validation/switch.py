"""The switch of the checks that read the values of tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_enabled = __debug__


def set_validation(enabled: bool) -> None:
    """Turn the checks of values on or off, for all threads of the process.

    Switched off, numbers that are not finite go through into the results; that saves some
    microseconds a tensor.
    """
    global _enabled
    _enabled = enabled


@contextmanager
def validating(enabled: bool) -> Iterator[None]:
    """Turn the checks of values on or off within a `with`, for all threads of the process.

    Examples:
        >>> from bray_algo.losses import a2c
        >>> nan = torch.tensor([torch.nan])
        >>> with validating(False):
        ...     a2c.loss(nan, nan, nan, nan, nan)[0]
        tensor(nan)
    """
    before = _enabled
    set_validation(enabled)
    try:
        yield
    finally:
        set_validation(before)


def is_validated(tensor: Tensor) -> bool:
    """Return whether this tensor's values are to be checked."""
    return _enabled and is_readable(tensor)


def is_readable(tensor: Tensor) -> bool:
    """Return whether values may be read: on a GPU that would wait, compiled it would fail."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling() and not is_traced()


def is_traced() -> bool:
    """Return whether torch writes down what is computed: then shapes are tensors to it, too."""
    return torch._C._get_tracing_state() is not None
