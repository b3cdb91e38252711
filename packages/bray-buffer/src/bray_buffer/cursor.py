"""What a checkpoint keeps of a buffer, whether it was in one process or in workers on Ray."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def of_workers(state: Mapping[str, Any]) -> list[Any]:
    """Return the states by worker; what was in one process was one worker's."""
    workers: list[Any] = state.get("workers", [state])
    return workers


def of_one(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state of a buffer in one process; of several workers the first's."""
    first: Mapping[str, Any] = of_workers(state)[0]
    return first
