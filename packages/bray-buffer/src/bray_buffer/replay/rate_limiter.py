"""How often each inserted item is sampled: Reverb's rate limiter, without its waiting."""

from __future__ import annotations

import math
from collections.abc import Mapping

from bray_core.errors import ConfigError, SpecError

_ROUNDING = 1e-6
"""Tolerance for sums of a rate that no binary number holds exactly, such as 0.1."""


class RateLimiter:
    """Says when an insert or a sample has to wait. Not thread-safe; it waits for nothing itself.

    With `inserted` i and `sampled` s, the surplus is `samples_per_insert · (i − min_size) − s`.
    An insert may raise it to `error_margin` at most, a sample may lower it to `−error_margin`: so
    neither side runs ahead of the other, and the ratio tends to `samples_per_insert`. The first
    `min_size` inserts are free, and nothing is sampled before them (Cassirer et al. 2021, "Reverb:
    A Framework For Experience Replay", §3.3).

    Args:
        samples_per_insert: Number of items sampled per item inserted, above 0.
        error_margin: Largest number of items sampled too few or too many. A wide margin lets both
            sides go on during each other's pauses.
        min_size: Number of items inserted before the first sample.
        batch_size: Number of items that one sample takes.

    Raises:
        ConfigError: a number is out of range, or the margin is so narrow that both sides would
            wait for each other for ever.

    Examples:
        >>> limiter = RateLimiter(2.0, error_margin=4.0, min_size=10, batch_size=4)
        >>> limiter.insertable()  # the free ones, and two that the margin leaves room for
        12
        >>> limiter.inserted(12)
        >>> limiter.can_insert(1), limiter.can_sample(4), limiter.can_sample(12)
        (False, True, False)
    """

    def __init__(
        self, samples_per_insert: float, error_margin: float, min_size: int, batch_size: int = 1
    ) -> None:
        if not 0 < samples_per_insert < math.inf:
            raise ConfigError(
                f"samples_per_insert: expected a number above 0, got {samples_per_insert}"
            )
        for name, count in (("min_size", min_size), ("batch_size", batch_size)):
            if count < 1:
                raise ConfigError(f"{name}: expected 1 or more, got {count}")
        least = (samples_per_insert + batch_size) / 2
        if not error_margin >= least:  # also NaN
            raise ConfigError(
                f"error_margin: expected {least:g} or more, (samples_per_insert + batch_size) / 2, "
                f"got {error_margin:g}: below it an insert and a sample can wait for each other"
            )
        self._rate = samples_per_insert
        self._margin = error_margin + _ROUNDING
        self._min_size = min_size
        self._inserted = 0
        self._sampled = 0

    @property
    def surplus(self) -> float:
        """Items that may still be sampled at the wanted ratio; below 0: that were too many."""
        return self._rate * (self._inserted - self._min_size) - self._sampled

    @property
    def is_in_pace(self) -> bool:
        """Whether the counters are such as this rate leads to; those of another rate are not."""
        if self._inserted < self._min_size:
            return self._sampled == 0
        return abs(self.surplus) <= 2 * self._margin  # a long segment exceeds the margin itself

    def can_insert(self, count: int) -> bool:
        """Whether `count` items may be inserted at once.

        A call for more than the margin holds can never be allowed: insert what `insertable` says.
        """
        is_free = self._inserted + count <= self._min_size
        return is_free or self.surplus + self._rate * count <= self._margin

    def insertable(self) -> int:
        """Return how many items may be inserted at once."""
        within = math.floor((self._margin - self.surplus) / self._rate)
        return max(0, self._min_size - self._inserted, within)

    def can_sample(self, count: int) -> bool:
        """Whether `count` items may be sampled at once."""
        return self._inserted >= self._min_size and self.surplus - count >= -self._margin

    def inserted(self, count: int) -> None:
        """Count inserted items."""
        self._inserted += count

    def sampled(self, count: int) -> None:
        """Count sampled items."""
        self._sampled += count

    def state_dict(self) -> dict[str, int]:
        """Return the counters."""
        return {"inserted": self._inserted, "sampled": self._sampled}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from counters of `state_dict`.

        Raises:
            SpecError: a counter is missing or negative.
        """
        for name in ("inserted", "sampled"):
            if not isinstance(state.get(name), int) or state[name] < 0:
                raise SpecError(
                    f"rate limiter: expected {name} of 0 or more, got {state.get(name)!r}"
                )
        self._inserted, self._sampled = state["inserted"], state["sampled"]
