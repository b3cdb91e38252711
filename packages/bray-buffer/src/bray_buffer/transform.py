"""A user's function from batch to batch, run in the buffer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bray_core import nested
from bray_core.errors import SpecError
from bray_core.layout import Block, Layout
from bray_core.nested import Nested

_ROWS = 2
"""Rows of the batch that shows the result's layout; one row could hide that a leaf lacks `[B]`."""


class Transform:
    """Runs a function on packed batches. It is a transform and a collate function in one.

    The function gets the batch's leaves `[B, …]`, its own to change, and returns leaves
    `[B', …]`: the same ones normalised, others, fewer rows or more. It must be a function of the
    batch alone, and its result may differ from batch to batch in B' only.

    Args:
        function: Function from leaves `[B, …]` to leaves `[B', …]`.
        layout: Packed layout of the rows that the function gets.

    Raises:
        SpecError: the function fails on a batch of zeros, or returns other things than leaves.

    Examples:
        >>> layout = Layout(nested.spec({"reward": np.zeros(3, np.float32)}))
        >>> clip = Transform(lambda batch: {"reward": batch["reward"].clip(-1, 1)}, layout)
        >>> clip.layout.views(clip(layout.pack({"reward": np.full((4, 3), 9, np.float32)})))
        {'reward': array([[1., 1., 1.],
               [1., 1., 1.],
               [1., 1., 1.],
               [1., 1., 1.]], dtype=float32)}
    """

    def __init__(self, function: Callable[[Nested], Nested], layout: Layout) -> None:
        self._function = function
        self._layout = layout
        with np.errstate(all="ignore"):  # zeros are no data: a mean of them is no news
            tree = self._call(layout.empty(_ROWS))
        self.layout = Layout(_row_spec(tree, self._name))
        """Packed layout of the rows that the function returns."""

    def num_rows(self, count: int) -> int:
        """Return B', as a batch of `count` rows of zeros gives it."""
        with np.errstate(all="ignore"):
            return len(self(self._layout.empty(count)))

    @property
    def _name(self) -> str:
        return getattr(self._function, "__qualname__", type(self._function).__name__)

    def __call__(self, block: Block) -> Block:
        """Return the function's batch `[B', nbytes']` of a batch `[B, nbytes]`.

        Raises:
            SpecError: the function raised, or its result has other leaves than at first.
        """
        tree = self._call(block)
        try:
            result = self.layout.pack(tree)
        except SpecError as error:
            raise SpecError(f"transform {self._name}: {error}") from error
        if result.ndim != 2 or not len(result):
            raise SpecError(f"transform {self._name}: expected leaves [B, …] with B of 1 or more")
        return result

    def _call(self, block: Block) -> Nested:
        try:
            return self._function(self._layout.views(block))
        except Exception as error:
            raise SpecError(
                f"transform {self._name}: raised {type(error).__name__}: {error}"
            ) from error


def _row_spec(tree: Nested, name: str) -> Nested:
    """Return the spec of one row of leaves `[B, …]`."""
    try:
        spec = nested.spec(tree)
    except SpecError as error:
        raise SpecError(f"transform {name}: {error}") from error
    shapes = {path: leaf.shape for path, leaf in nested.items(spec)}
    if any(not shape for shape in shapes.values()) or len({s[0] for s in shapes.values()}) != 1:
        raise SpecError(
            f"transform {name}: expected leaves with one first dimension [B, …], got {shapes}"
        )
    return nested.map(lambda leaf: nested.ArraySpec(leaf.dtype, leaf.shape[1:]), spec)
