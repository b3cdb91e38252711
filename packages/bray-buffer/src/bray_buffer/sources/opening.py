"""Making a source of what a caller gives, and looking at its first sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, TypeAlias

from bray_buffer.ring import as_layout
from bray_buffer.sources.sequence import SequenceSource
from bray_buffer.sources.source import Rows, Source, Stream, stack
from bray_buffer.sources.stream import StreamSource
from bray_core import nested
from bray_core.errors import ConfigError, SpecError
from bray_core.layout import Layout
from bray_core.nested import Nested

Samples: TypeAlias = (
    Source | Stream | Sequence[Nested] | Iterable[Nested] | Callable[[], Iterable[Nested]]
)
"""All that samples can be read from."""


class Peeked:
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


def as_source(source: Any) -> Source | Peeked:
    """Return what a caller gave as a source, or as a stream.

    Raises:
        ConfigError: it is neither, nor a sequence, an iterable or a callable.
    """
    if isinstance(source, Source | Peeked):
        return source
    if hasattr(source, "is_repeatable"):
        return Peeked(source)
    if callable(source):
        return Peeked(StreamSource(source))
    if hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        return SequenceSource(source)
    if hasattr(source, "__iter__"):
        return Peeked(StreamSource(source))
    raise ConfigError(
        "source: expected a source, a sequence, an iterable or a callable, got "
        f"{type(source).__name__}"
    )


def first_layout(source: Source | Peeked) -> Layout:
    """Return the layout of a source's first sample.

    Raises:
        SpecError: there is none, or it is no nested array.
    """
    rows = _peek(source) if isinstance(source, Peeked) else _first_rows(source)
    return as_layout(nested.map(lambda leaf: nested.ArraySpec(leaf.dtype, leaf.shape[1:]), rows))


def _peek(source: Peeked) -> Rows:
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
