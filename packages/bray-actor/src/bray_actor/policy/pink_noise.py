"""Pink noise: normal numbers that follow each other over all times at once, fast ones and slow.

Eberhard et al. 2023, "Pink noise is all you need: colored noise exploration in deep reinforcement
learning". Independent draws (white noise) shake an agent on the spot; a random walk of actions (red
noise) carries it to the bounds. Pink noise, whose power falls with 1 / frequency, lies between.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bray_core.nested import Nested

NUM_OCTAVES = 10
"""Numbers that a draw takes for each component: one for each time scale, of 0.5 to 256 steps."""
_KEPT = np.exp(-1.0 / 2.0 ** np.arange(-1, NUM_OCTAVES - 1))
"""What is left of each part after a step. So power is within 10 % of 1 / frequency in episodes of
1,000 steps."""
_FRESH = np.sqrt(1.0 - np.square(_KEPT))


def is_pink(outputs: Nested) -> bool:
    """Return whether a policy asks for pink noise: its outputs have a leaf `pink`."""
    return isinstance(outputs, dict) and "pink" in outputs


class PinkNoise:
    """Standard normal numbers whose power falls with 1 / frequency, each correlated with those
    before it.

    They are sums of autoregressive parts, one for each octave of time scales, which all begin in
    their steady state: each number by itself is normal with mean 0 and deviation 1.
    """

    def __init__(self) -> None:
        self._parts: npt.NDArray[np.float64] | None = None

    def draw(self, fresh: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the next numbers `[…]`.

        Args:
            fresh: independent standard normal numbers `[…, NUM_OCTAVES]`.
        """
        if self._parts is None:
            self._parts = fresh
        else:
            self._parts = _KEPT * self._parts + _FRESH * fresh
        numbers: npt.NDArray[np.float64] = self._parts.sum(-1) / NUM_OCTAVES**0.5
        return numbers
