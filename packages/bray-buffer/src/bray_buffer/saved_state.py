"""The small state of a buffer in a checkpoint: one process or workers on Ray, random numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bray_core.errors import SpecError


def worker_states(state: Mapping[str, Any]) -> list[Any]:
    """Return the states by worker; a buffer in one process counts as one worker."""
    workers: list[Any] = state.get("workers", [state])
    return workers


def first_state(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state of a buffer in one process, or that of the first of several workers."""
    first: Mapping[str, Any] = worker_states(state)[0]
    return first


def generator_state(random: np.random.Generator) -> dict[str, Any]:
    """Return a generator's state; its whole numbers have 128 bits, which JSON can hold."""
    return dict(random.bit_generator.state)


def set_generator_state(random: np.random.Generator, state: Any) -> None:
    """Set what `generator_state` returned.

    Raises:
        SpecError: the state is not a generator's.
    """
    try:
        random.bit_generator.state = state
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise SpecError(f"random: expected a generator's state: {error!r}") from error
