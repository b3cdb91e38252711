"""A numpy generator's state as plain values."""

from __future__ import annotations

from typing import Any

import numpy as np

from bray_core.errors import SpecError


def get_state(random: np.random.Generator) -> dict[str, Any]:
    """Return the state; its whole numbers have 128 bits, which JSON can hold."""
    return dict(random.bit_generator.state)


def set_state(random: np.random.Generator, state: Any) -> None:
    """Go on from a state of `get_state`.

    Raises:
        SpecError: it is none.
    """
    try:
        random.bit_generator.state = state
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise SpecError(f"random: expected a generator's state: {error!r}") from error
