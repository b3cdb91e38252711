"""Policy lag: by how many versions a segment is older than the newest policy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bray_core.errors import ConfigError
from bray_core.layout import Block, Layout


class PolicyLag:
    """Tells which segments are too old to learn from.

    A segment is as old as its oldest valid step: it is stale if the newest version is more than
    `max_lag` above the version that this step was acted with. (Not as old as its newest
    step: then the bound would hold for the last step alone.)

    Args:
        layout: Packed layout with an integer leaf `policy_version`, `()` or `[T]`; with `[T]` a
            leaf `length` tells where padding begins.
        max_lag: Largest number of versions, 0 or more.

    Raises:
        ConfigError: the layout has no such leaf.
    """

    def __init__(self, layout: Layout, max_lag: int) -> None:
        leaf = {field.path: field for field in layout.fields}.get("policy_version")
        if leaf is None or leaf.dtype.kind not in "iu" or len(leaf.shape) > 1:
            got = f"{leaf.dtype} {leaf.shape}" if leaf else "no such leaf"
            raise ConfigError(
                "max_policy_lag: needs segments with an integer leaf `policy_version`, (T,) or "
                f"(), got {got}: add it, or leave max_policy_lag out"
            )
        self._layout = layout
        self._max_lag = max_lag
        self._has_steps = bool(leaf.shape)
        self._has_length = any(field.path == "length" for field in layout.fields)
        self.version = 0
        """Newest policy version."""

    def versions(self, blocks: Block) -> npt.NDArray[np.int64]:
        """Return the version `[B]` of the oldest valid step of blocks `[B, nbytes]`."""
        views = self._layout.views(blocks)
        versions: npt.NDArray[np.int64] = views["policy_version"].astype(np.int64)
        if not self._has_steps:
            return versions
        if self._has_length:
            steps = np.arange(versions.shape[1])
            versions[steps >= views["length"][:, None]] = np.iinfo(np.int64).max
        oldest: npt.NDArray[np.int64] = versions.min(axis=1)
        return oldest

    def is_stale(self, blocks: Block) -> npt.NDArray[np.bool_]:
        """Return `[B]`, which of blocks `[B, nbytes]` are too old."""
        return self.version - self.versions(blocks) > self._max_lag
