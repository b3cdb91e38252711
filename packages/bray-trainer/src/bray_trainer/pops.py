"""One batch of each buffer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

from bray_core.errors import BrayError
from bray_core.layout import Packed
from bray_core.protocols import BufferProtocol
from bray_trainer.arguments import ONLY

Replay = Packed | dict[str, Packed]
"""One popped batch, or one of each buffer by name."""


class Pops:
    """Pops a replay; with several buffers, what some gave waits for the others.

    Args:
        buffers: by name; a single one has the empty name.
    """

    def __init__(self, buffers: Mapping[str, BufferProtocol]) -> None:
        self._buffers = dict(buffers)
        self._parts: dict[str, Packed] = {}

    def pop(self, timeout_s: float) -> Replay:
        """Return a batch, or one of each buffer by name.

        Raises:
            DeadlineError: there is none in time; what there is of it is kept.
            ClosedError: a buffer was closed.
        """
        deadline = time.monotonic() + timeout_s
        for name, buffer in self._buffers.items():
            if name not in self._parts:
                self._parts[name] = buffer.pop(max(0.0, deadline - time.monotonic()))
        parts, self._parts = self._parts, {}
        return parts[ONLY] if ONLY in self._buffers else parts

    def state_dict(self) -> dict[str, Any]:
        """Return what was popped of an incomplete replay."""
        return self.encode(self._parts)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; errors as of `decode`."""
        self._parts = self._decode_parts(state)

    def encode(self, replay: Replay) -> dict[str, Any]:
        """Return a replay as tensors and strings."""
        parts = {ONLY: replay} if isinstance(replay, Packed) else replay
        return {
            name: {"layout": part.layout.id, "block": torch.from_numpy(part.block.copy())}
            for name, part in parts.items()
        }

    def decode(self, state: Mapping[str, Any]) -> Replay:
        """Return what `encode` was given.

        Raises:
            BrayError: a buffer has another layout now, or none at all.
        """
        parts = self._decode_parts(state)
        return parts.get(ONLY, parts)

    def _decode_parts(self, state: Mapping[str, Any]) -> dict[str, Packed]:
        return {name: self._packed(name, part) for name, part in state.items()}

    def _packed(self, name: str, part: Mapping[str, Any]) -> Packed:
        buffer = self._buffers.get(name)
        # What a buffer adds to its rows, such as importance weights, is in `batch_layout` only.
        for layout in (getattr(buffer, "batch_layout", None), getattr(buffer, "layout", None)):
            if layout is not None and layout.id == part["layout"]:
                return Packed(layout, part["block"].numpy())
        raise BrayError(
            f"buffer{f' {name!r}' if name else ''}: holds no batches of layout {part['layout']}"
        )
