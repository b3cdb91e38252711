"""Makes a batch of packed segments: one copy; with a mask, one copy a leaf."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bray_buffer.segment_lengths import SegmentLengths
from bray_buffer.time_axis import TimeAxis
from bray_core import nested
from bray_core.errors import ConfigError
from bray_core.layout import Block, Layout
from bray_core.nested import ArraySpec


class SegmentBatcher:
    """Joins segments into a batch; with a mask, it marks the valid steps and clears the others.

    With `mask`, the batch has one more leaf: `mask` bool `[T]`, true up to the segment's `length`.
    Steps from there on are zero in every leaf `[T, …]`, whatever the producer left in them. A
    loss is then `(mask * loss).sum() / mask.sum()`.

    Args:
        layout: Packed layout of one segment.
        mask: Whether to add the leaf `mask`.
        without_time: Top-level leaves without a time dimension although their first dimension is T.

    Raises:
        ConfigError: a mask is wanted, and the layout has no `length`, no clear time dimension, or
            a leaf `mask` already.

    Examples:
        >>> leaves = {"reward": np.ones(4, np.float32), "length": np.array(2)}
        >>> layout = Layout(nested.spec(leaves))
        >>> batcher = SegmentBatcher(layout, mask=True)
        >>> batch = batcher.layout.views(batcher([layout.pack(leaves).reshape(1, -1)]))
        >>> batch["reward"].tolist(), batch["mask"].tolist()
        ([[1.0, 1.0, 0.0, 0.0]], [[True, True, False, False]])
    """

    def __init__(
        self, layout: Layout, *, mask: bool = False, without_time: tuple[str, ...] = ()
    ) -> None:
        self._segment = layout
        self.layout = layout
        """Packed layout of a row of the batch."""
        self._axis: TimeAxis | None = None
        if mask:
            SegmentLengths(layout, "mask")
            self._axis = TimeAxis.of(layout, without_time)
            self.layout = _with_mask(layout, self._axis.length)

    def __call__(self, parts: Sequence[Block]) -> Block:
        """Return the batch `[B, nbytes]` of segments in one or more blocks `[b, nbytes]`."""
        if self._axis is None:
            return np.concatenate(parts)
        batch = self.layout.empty(sum(map(len, parts)))
        start = 0
        for part in parts:
            self._copy(part, batch[start : start + len(part)])
            start += len(part)
        self._clear_padding(batch, self._axis)
        return batch

    def _copy(self, part: Block, batch: Block) -> None:
        targets = self.layout.views(batch)
        for name, source in self._segment.views(part).items():
            pairs = zip(nested.items(source), nested.items(targets[name]), strict=True)
            for (_, values), (_, target) in pairs:
                target[...] = values

    def _clear_padding(self, batch: Block, axis: TimeAxis) -> None:
        views = self.layout.views(batch)
        views["mask"][...] = np.arange(axis.length) < views["length"][:, None]
        padding = ~views["mask"]
        if padding.any():
            for path, leaf in nested.items(views):
                if path in axis.paths:
                    leaf[padding] = 0


def _with_mask(layout: Layout, length: int) -> Layout:
    if "mask" in layout.spec:
        raise ConfigError("mask: the segments have a leaf of this name: choose another for theirs")
    return Layout({**layout.spec, "mask": ArraySpec(np.dtype(bool), (length,))})
