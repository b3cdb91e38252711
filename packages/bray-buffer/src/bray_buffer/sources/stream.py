"""Samples from an iterator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from bray_core.nested import Nested


class StreamSource:
    """Samples of an iterable.

    Args:
        samples: an iterable, for one epoch; or a callable that returns a new iterator each time.

    Examples:
        >>> stream = StreamSource(lambda: iter([{"x": 1}, {"x": 2}]))
        >>> stream.is_repeatable, next(stream.open())
        (True, {'x': 1})
    """

    def __init__(self, samples: Iterable[Nested] | Callable[[], Iterable[Nested]]) -> None:
        self._samples = samples
        self.is_repeatable = callable(samples)

    def open(self) -> Iterator[Any]:
        """Begin an epoch."""
        return iter(self._samples() if callable(self._samples) else self._samples)
