"""Random numbers of requests: each a function of a seed and a position, and of nothing else.

So a request with a seed gives the same tokens whatever else is in the batch, and after it had to
begin anew. The numbers are those of SplitMix64 (Steele, Lea and Flood, "Fast splittable
pseudorandom number generators", 2014).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_GAMMA_WORD = 0x9E3779B97F4A7C15
_GAMMA = np.uint64(_GAMMA_WORD)
_WORD = 2**64


def stream_seed(seed: int, index: int = 0) -> int:
    """Return 64 bits that differ for neighbouring seeds and indices in about half of their bits."""
    first = _mixed_word((seed + _GAMMA_WORD) % _WORD)
    return _mixed_word((first + (index + 1) * _GAMMA_WORD) % _WORD)


def _mixed_word(word: int) -> int:
    """Return `_mix` of one number: numpy would take ten times as long."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) % _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) % _WORD
    return word ^ (word >> 31)


def uniforms(
    seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Return numbers in [0, 1), float64 `[N]`.

    Args:
        seeds: What `stream_seed` gave for each stream, `[N]`.
        positions: Position in each stream, 0 or more, `[N]`.
    """
    mixed = _mix(seeds + (positions.astype(np.uint64) + np.uint64(1)) * _GAMMA)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
