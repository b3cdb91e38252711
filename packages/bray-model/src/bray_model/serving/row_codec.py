"""The codec's bytes for rows of one signature, read and written without looking at each anew.

All that `bray_core.codec` writes for a row is the same from row to row, but the numbers: so where
they lie is found out once, and a batch of requests becomes arrays by joining slices.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bray_core.codec import encode
from bray_core.errors import CodecError
from bray_core.nested import Nested
from bray_model.signature import Signature
from bray_model.tree_spec import Leaf, Leaves, TreeSpec


class RowCodec:
    """Reads calls and writes replies of a signature; see `bray_model.serving.service.ModelService`.

    Args:
        signature: Signature of the model.
    """

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self._request = _layout(signature.input_tree, list)
        constants = self._request.constants if self._request is not None else []
        self._constants = [one for one in constants if one[1]]
        self.max_bytes = _most_bytes(signature.input_tree)
        """A longer body cannot hold a row, whatever dtype its client took by mistake."""
        self._reply: _Layout | None = None
        self._version = -1

    def read(self, bodies: Sequence[bytes]) -> Leaves | None:
        """Return the input leaves `[B, ...]` of B calls; None: some are laid out otherwise."""
        layout = self._request
        if layout is None:
            return None
        size, constants = len(layout.plain), self._constants
        for body in bodies:
            if len(body) != size:
                return None
            for start, constant in constants:
                if not body.startswith(constant, start):
                    return None
        rows = np.frombuffer(b"".join(bodies), np.uint8).reshape(len(bodies), size)
        leaves = [
            rows[:, start:stop].copy().view(spec.dtype).reshape(len(bodies), *spec.shape)
            for (start, stop), spec in zip(
                layout.fields, self.signature.input_tree.specs, strict=True
            )
        ]
        return leaves if all(map(_is_proper, leaves)) else None

    def write(self, leaves: Leaves, version: int) -> list[bytes]:
        """Return the replies for output leaves `[B, ...]`."""
        layout = self._reply_layout(version)
        num_rows = len(leaves[0])
        if layout is None:
            build = self.signature.output_tree.build
            outputs = [build([leaf[row, ...] for leaf in leaves]) for row in range(num_rows)]
            return [encode({"outputs": output, "version": version}) for output in outputs]
        size = len(layout.plain)
        rows = np.empty((num_rows, size), np.uint8)
        rows[:] = layout.plain
        for (start, stop), leaf in zip(layout.fields, leaves, strict=True):
            data = np.ascontiguousarray(leaf).reshape(num_rows, -1)
            rows[:, start:stop] = data.view(np.uint8)
        replies = rows.tobytes()
        return [replies[at : at + size] for at in range(0, len(replies), size)]

    def _reply_layout(self, version: int) -> _Layout | None:
        if version != self._version:
            self._version = version
            self._reply = _layout(
                self.signature.output_tree, lambda tree: {"outputs": tree, "version": version}
            )
        return self._reply


def _most_bytes(tree: TreeSpec) -> int:
    """Return what a row may take: elements of 16 bytes, and names and headers beside them."""
    names = sum(map(len, tree.paths))
    elements = sum(math.prod(spec.shape) for spec in tree.specs)
    return 16 * elements + 512 * len(tree.specs) + 2 * names + 4096


class _Layout(NamedTuple):
    plain: Leaf
    """Bytes of a row of zeros."""
    fields: list[tuple[int, int]]
    """Start and stop of each leaf's numbers, in the tree's order."""
    constants: list[tuple[int, bytes]]
    """Start and content of what lies before, between and behind them."""


def _layout(tree: TreeSpec, wrap: Callable[[Nested], Nested]) -> _Layout | None:
    """Find where the leaves lie by encoding rows that differ in one leaf; None: not to be found."""
    if sys.byteorder != "little":
        return None

    def encoded(marked: int) -> Leaf:
        leaves = [np.zeros(spec.shape, spec.dtype) for spec in tree.specs]
        if marked >= 0:
            leaves[marked].reshape(-1).view(np.uint8)[:] = 1
        return np.frombuffer(encode(wrap(tree.build(leaves))), np.uint8)

    try:
        plain = encoded(-1)
        fields = [_field(plain, encoded(index)) for index in range(len(tree.specs))]
    except CodecError:  # a dtype that the codec has not
        return None
    constants, at = [], 0
    for start, stop in sorted(fields):
        constants.append((at, plain[at:start].tobytes()))
        at = stop
    constants.append((at, plain[at:].tobytes()))
    return _Layout(plain, fields, constants)


def _field(plain: Leaf, marked: Leaf) -> tuple[int, int]:
    differs = np.flatnonzero(plain != marked)
    return (int(differs[0]), int(differs[-1]) + 1) if len(differs) else (len(plain), len(plain))


def _is_proper(leaf: np.ndarray[Any, Any]) -> bool:
    """Whether bools are 0 or 1."""
    return leaf.dtype.kind != "b" or not (leaf.view(np.uint8) > 1).any()
