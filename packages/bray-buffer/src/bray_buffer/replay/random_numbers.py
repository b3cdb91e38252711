"""Random numbers drawn many at a time: a draw of one batch costs a slice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from bray_buffer.saved_state import generator_state, set_generator_state
from bray_core.errors import SpecError

_BLOCK = 16384
"""Number of numbers that are drawn at once."""


class RandomNumbers:
    """Uniform numbers in [0, 1), `count` at a time; the same for the same seed.

    Args:
        seed: Seed of the generator.
        count: Number of numbers that each `take` gives.
    """

    def __init__(self, seed: int, count: int) -> None:
        self._random = np.random.default_rng(seed)
        self._shape = max(1, _BLOCK // count), count
        self._used = self._shape[0]
        self._before: Any = None

    def _refill(self) -> None:
        self._before = generator_state(self._random)
        self._numbers = self._random.random(self._shape)
        self._used = 0

    def take(self) -> npt.NDArray[np.float64]:
        """Return the next numbers `[count]`, valid until the next block is drawn."""
        if self._used == self._shape[0]:
            self._refill()
        self._used += 1
        numbers: npt.NDArray[np.float64] = self._numbers[self._used - 1]
        return numbers

    def state_dict(self) -> dict[str, Any]:
        """Return where the draws stand."""
        if self._used == self._shape[0]:
            return {"generator": generator_state(self._random), "used": 0}
        return {"generator": self._before, "used": self._used}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned, also for another number at a time.

        Raises:
            SpecError: the state is of another kind.
        """
        if set(state) != {"generator", "used"} or not isinstance(state["used"], int):
            raise SpecError(f"draws: expected a generator and how much of it is used, got {state}")
        set_generator_state(self._random, state["generator"])
        used = state["used"]
        if not 0 <= used < _BLOCK:
            raise SpecError(f"draws: expected 0 to {_BLOCK - 1} used, got {used}")
        self._refill()
        self._used = min(used, self._shape[0])  # of smaller batches a block has more
