"""Segments as callers give them, checked and turned into rows of bytes."""

from __future__ import annotations

import numpy as np

from bray_core import nested
from bray_core.errors import SpecError
from bray_core.layout import Block, Layout, Packed
from bray_core.nested import Nested


def as_layout(layout: Layout | Nested) -> Layout:
    """Return a `Layout`, given one or the spec that it is made of.

    Raises:
        SpecError: a leaf has a dimension of 0.
    """
    layout = layout if isinstance(layout, Layout) else Layout(layout)
    for field in layout.fields:
        if 0 in field.shape:
            raise SpecError(
                f"layout: {field.path or 'the leaf'} has shape {field.shape}: expected dimensions "
                "of 1 or more"
            )
    return layout


def as_rows(layout: Layout, segment: Packed | Nested) -> Block:
    """Return one segment's block `[1, nbytes]`, or several packed ones' `[B, nbytes]`.

    Raises:
        SpecError: the segment does not fit the layout; the message names the leaf.
    """
    if not isinstance(segment, Packed):
        nested.check(segment, layout.spec, (), "segment")
        return layout.pack(segment).reshape(1, layout.nbytes)
    if segment.layout != layout:
        _explain(layout, segment.layout)
    block = segment.block
    if block.dtype != np.uint8 or not 1 <= block.ndim <= 2 or block.shape[-1] != layout.nbytes:
        raise SpecError(
            f"segment: expected a block uint8 ({layout.nbytes},) or (B, {layout.nbytes}), "
            f"got {block.dtype} {block.shape}"
        )
    return block.reshape(-1, layout.nbytes)


def _explain(expected: Layout, got: Layout) -> None:
    """Raise the SpecError that names the first leaf in which two layouts differ."""
    nested.check(got.views(got.empty()), expected.spec, (), "segment")
    raise SpecError(f"segment: expected layout {expected.id}, got {got.id}")
