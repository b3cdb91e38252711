"""Sources made of Python objects: sequences, iterables and callables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, TypeAlias

from bray_buffer.segment_rows import as_layout
from bray_buffer.sources.source import Rows, Source, Stream, stack
from bray_core import nested
from bray_core.errors import ConfigError, SpecError
from bray_core.layout import Layout
from bray_core.nested import Nested

Samples: TypeAlias = (
    Source | Stream | Sequence[Nested] | Iterable[Nested] | Callable[[], Iterable[Nested]]
)
"""All kinds of objects that samples can be read from."""


class SequenceSource:
    """Samples of a sequence: nested arrays by number.

    Args:
        samples: Sequence with `len` and `[number]`; several threads may index it at once.
    """

    def __init__(self, samples: Sequence[Nested]) -> None:
        if isinstance(samples, dict | str | bytes):
            raise ConfigError(
                f"source: expected a sequence of samples, got {type(samples).__name__}: a list of "
                "dicts, say"
            )
        self._samples = samples
        self.num_units = len(samples)
        self.units_per_read = 64
        self.is_shuffled_by_order = True

    def read(self, units: Sequence[int]) -> Iterator[Rows]:
        """Yield the samples at some places."""
        yield stack([self._samples[unit] for unit in units])

    def describe(self, unit: int) -> str:
        """Return the sample's number."""
        return f"sample {unit}"


class StreamSource:
    """Samples of an iterable.

    Args:
        samples: An iterable, for one epoch; or a callable that returns a new iterator each time.

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


class PeekableStream:
    """A stream whose first sample can be looked at, and is read all the same."""

    def __init__(self, stream: Stream) -> None:
        self.is_repeatable = stream.is_repeatable
        self._stream = stream
        self._ahead: Iterator[Any] | None = None
        """An epoch that was begun, its first sample put back."""
        self._is_read = False

    def peek(self) -> Any:
        """Return the first sample; None if there is none."""
        samples = self.open()
        first = next(samples, None)
        self._ahead = samples if first is None else chain([first], samples)
        return first

    def open(self) -> Iterator[Any]:
        """Begin an epoch."""
        if self._ahead is not None:
            samples, self._ahead = self._ahead, None
            return samples
        if self._is_read and not self.is_repeatable:
            raise ConfigError("source: an iterator can be read once: give a callable")
        self._is_read = True
        return self._stream.open()


def as_source(source: Any) -> Source | PeekableStream:
    """Return what a caller gave as a source, or as a stream.

    Raises:
        ConfigError: the object is none of these.
    """
    if isinstance(source, Source | PeekableStream):
        return source
    if hasattr(source, "is_repeatable"):
        return PeekableStream(source)
    if callable(source):
        return PeekableStream(StreamSource(source))
    if hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        return SequenceSource(source)
    if hasattr(source, "__iter__"):
        return PeekableStream(StreamSource(source))
    raise ConfigError(
        "source: expected a source, a sequence, an iterable or a callable, got "
        f"{type(source).__name__}"
    )


def first_layout(source: Source | PeekableStream) -> Layout:
    """Return the layout of a source's first sample.

    Raises:
        SpecError: there is no sample, or it is not a nested array.
    """
    rows = _peek(source) if isinstance(source, PeekableStream) else _first_rows(source)
    return as_layout(nested.map(lambda leaf: nested.ArraySpec(leaf.dtype, leaf.shape[1:]), rows))


def _peek(source: PeekableStream) -> Rows:
    first = source.peek()
    if first is None:
        raise SpecError("source: expected at least one sample, got none")
    return stack([first])


def _first_rows(source: Source) -> Rows:
    for unit in range(source.num_units):
        for rows in source.read([unit]):
            if not isinstance(rows, SpecError):
                return rows
    raise SpecError("source: expected at least one sample, got none")
