"""Players for tests: functions of an observation and a generator."""

from __future__ import annotations

from typing import Any

import numpy as np

NOT_A_FUNCTION = 3


def first_legal(observation: Any, generator: np.random.Generator) -> int:
    """Return the first move that is allowed."""
    return int(np.flatnonzero(observation["action_mask"])[0])


def always_paper(observation: Any, generator: np.random.Generator) -> int:
    """Return 1."""
    return 1


def fails(observation: Any, generator: np.random.Generator) -> int:
    """Raise an error."""
    raise KeyError("cards")
