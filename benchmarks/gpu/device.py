"""What the scripts of this folder share: the option `--device`, and rates that wait for a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

DEVICE: dict[str, Any] = {
    "choices": ("cuda", "cpu"),
    "default": "cuda" if torch.cuda.is_available() else "cpu",
    "help": "cpu: a dry run, with sizes that end soon",
}


def finish(device: str) -> None:
    """Wait until the device has done what was asked of it."""
    if device == "cuda":
        torch.cuda.synchronize()


def rate_of(step: Callable[[], float], device: str, seconds: float) -> float:
    """Return what `step` returns, a second, after two calls to warm up."""
    for _ in range(2):
        step()
    finish(device)
    done, began = 0.0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        done += step()
        if done and time.perf_counter() - began > seconds / 4:
            finish(device)  # or the queue of a GPU would run ahead of the clock
    finish(device)
    return done / (time.perf_counter() - began)


def describe() -> str:
    """Return the device's name, memory and torch's version of CUDA."""
    if not torch.cuda.is_available():
        return "no GPU"
    found = torch.cuda.get_device_properties(0)
    count = torch.cuda.device_count()
    return (
        f"{count} × {found.name}, {found.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"
    )
