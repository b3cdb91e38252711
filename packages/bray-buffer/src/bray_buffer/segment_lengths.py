"""The number of valid steps of packed segments: their leaf `length`."""

from __future__ import annotations

import math

from bray_buffer.time_axis import TimeAxis
from bray_core.errors import ConfigError, SpecError
from bray_core.layout import Block, Layout


class SegmentLengths:
    """Reads the leaf `length` of blocks.

    Args:
        layout: Packed layout of one segment.
        purpose: Name of the setting that needs the lengths, for the message.

    Raises:
        ConfigError: the layout has no scalar integer leaf `length`.
    """

    def __init__(self, layout: Layout, purpose: str = "batch_steps") -> None:
        fields = [field for field in layout.fields if field.path == "length"]
        if not fields or fields[0].shape or fields[0].dtype.kind not in "iu":
            got = f"{fields[0].dtype} {fields[0].shape}" if fields else "no such leaf"
            raise ConfigError(
                f"{purpose}: needs segments with a leaf `length`, one integer, got {got}: "
                "add it, or use batch_size"
            )
        self._dtype = fields[0].dtype
        self._bytes = slice(fields[0].offset, fields[0].offset + fields[0].nbytes)
        self._longest = _longest(layout)

    def of(self, blocks: Block) -> list[int]:
        """Return the length of each of blocks `[B, nbytes]`.

        Raises:
            SpecError: a length is below 1, or above T.
        """
        # A list, since numpy's minimum of one number takes longer than to copy its segment.
        lengths: list[int] = blocks[:, self._bytes].view(self._dtype).ravel().tolist()
        if lengths and min(lengths) < 1:
            raise SpecError(f"segment/length: expected 1 step or more, got {min(lengths)}")
        if lengths and max(lengths) > self._longest:
            raise SpecError(
                f"segment/length: expected {self._longest} steps at most, as its leaves have, "
                f"got {max(lengths)}"
            )
        return lengths


def is_scalar_length(layout: Layout) -> bool:
    """Return whether there is a scalar integer leaf `length`."""
    return any(
        field.path == "length" and not field.shape and field.dtype.kind in "iu"
        for field in layout.fields
    )


def _longest(layout: Layout) -> float:
    """Return T; infinity where the leaves do not tell."""
    try:
        return TimeAxis.of(layout).length
    except ConfigError:
        return math.inf
