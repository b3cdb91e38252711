"""Making an environment anew where it raised."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from bray_actor.environments.error_limit import ErrorLimit, tell_error

logger = logging.getLogger(__name__)

_SEED_STEP = 1_000_003


class _Closable(Protocol):
    def close(self) -> object: ...


E = TypeVar("E", bound=_Closable)


class Renewal(Generic[E]):
    """Makes an environment anew where it raised, as often as `ErrorLimit` allows.

    Args:
        make: Function that makes the environment.
        name: What is played, for messages.
        reports: Whether errors are counted and logged here.
    """

    seed: int | None = None
    """Seed of the newest reset that brought one; None: none did."""

    def __init__(self, make: Callable[[], E], name: str, *, reports: bool = True) -> None:
        self._make = make
        self._name = name
        self._reports = reports
        self._limit = ErrorLimit(name)
        self._num_errors = 0

    def count_step(self) -> None:
        """Count a step, whatever comes of it."""
        self._limit.count_step()

    def next_seed(self) -> int | None:
        """Return a seed that differs from error to error, the same in each run."""
        return None if self.seed is None else renewed_seed(self.seed, self._num_errors)

    def renew(self, broken: E, begin: Callable[[E], None], error: Exception) -> str:
        """Close the broken environment, make another and begin it; return what the last raised.

        Args:
            broken: What raised.
            begin: Keeps the environment that was made, and resets it where a step may come next.
            error: What was raised.

        Raises:
            BrayError: there were too many errors.
        """
        while True:
            words = f"{type(error).__name__}: {error}".strip().splitlines()[0][:300]
            self._num_errors += 1
            if self._reports:
                tell_error(self._name, words)
            self._limit.count_error(words, error)
            try:
                self._close_quietly(broken)
                broken = self._make()
                begin(broken)
            except Exception as another:  # noqa: BLE001  the boundary to code of others
                error = another
            else:
                return words

    def _close_quietly(self, broken: _Closable) -> None:
        try:
            broken.close()
        except Exception as error:  # noqa: BLE001  it is broken already
            logger.debug("environment: %s: not closed: %s", self._name, error)


def renewed_seed(seed: int, num_errors: int) -> int:
    """Return the seed of what begins after so many errors, by that of what began first."""
    return (seed + _SEED_STEP * num_errors) % 2**31
