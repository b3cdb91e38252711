"""How many steps of a packed segment are valid: its leaf `length`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bray_core.errors import ConfigError, SpecError
from bray_core.layout import Block, Layout


class Lengths:
    """Reads the leaf `length` of blocks.

    Raises:
        ConfigError: the layout has no scalar integer leaf `length`.
    """

    def __init__(self, layout: Layout) -> None:
        fields = [field for field in layout.fields if field.path == "length"]
        if not fields or fields[0].shape or fields[0].dtype.kind not in "iu":
            got = f"{fields[0].dtype} {fields[0].shape}" if fields else "no such leaf"
            raise ConfigError(
                f"batch_steps: needs segments with a leaf `length`, one integer, got {got}: "
                "add it, or use batch_size"
            )
        self._dtype = fields[0].dtype
        self._bytes = slice(fields[0].offset, fields[0].offset + fields[0].nbytes)

    def of(self, blocks: Block) -> npt.NDArray[np.int64]:
        """Return the lengths `[B]` of blocks `[B, nbytes]`.

        Raises:
            SpecError: one is below 1.
        """
        raw = np.ascontiguousarray(blocks[:, self._bytes])
        lengths = raw.view(self._dtype)[:, 0].astype(np.int64)
        if lengths.size and lengths.min() < 1:
            raise SpecError(f"segment/length: expected 1 step or more, got {lengths.min()}")
        return lengths
