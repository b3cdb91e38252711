"""A mixture: each batch comes from one of several buffers, drawn by weight."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from bray_core.errors import ConfigError, DeadlineError
from bray_core.layout import Layout, Packed
from bray_core.protocols import Buffer


class Mixture:
    """Pops from several buffers; pushing goes to the buffers themselves.

    Args:
        buffers: name → (buffer, weight ≥ 0); weights need not add up to 1.
        seed: of the draws.

    Raises:
        ConfigError: no buffer, a negative weight, all weights 0, or layouts that differ.
    """

    def __init__(self, buffers: Mapping[str, tuple[Buffer, float]], seed: int = 0) -> None:
        if not buffers:
            raise ConfigError("buffers: expected at least one, got none")
        self._buffers = {name: buffer for name, (buffer, _) in buffers.items()}
        first, *rest = self._buffers.values()
        if any(buffer.layout != first.layout for buffer in rest):
            raise ConfigError("buffers: expected one layout in all of them, got several")
        self._layout = first.layout
        self._random = np.random.default_rng(seed)
        self.set_weights({name: weight for name, (_, weight) in buffers.items()})

    @property
    def layout(self) -> Layout:
        """The packed layout of one segment."""
        return self._layout

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Change the weights of all buffers."""
        if set(weights) != set(self._buffers):
            raise ConfigError(f"weights: expected {sorted(self._buffers)}, got {sorted(weights)}")
        if min(weights.values()) < 0 or sum(weights.values()) <= 0:
            raise ConfigError(f"weights: expected 0 or more and one above 0, got {dict(weights)}")
        total = sum(weights.values())
        self._shares = [weights[name] / total for name in self._buffers]

    def pop(self, timeout_s: float | None = None) -> Packed:
        """Return a batch of the drawn buffer; waits for that one, so that shares stay exact.

        Raises:
            DeadlineError: it has no batch within `timeout_s`; names it.
            ClosedError: it was closed.
        """
        name = str(self._random.choice(list(self._buffers), p=self._shares))
        started = time.monotonic()
        try:
            return self._buffers[name].pop(timeout_s)
        except DeadlineError as error:
            waited = time.monotonic() - started
            raise DeadlineError(f"mixture: {name!r} waited {waited:.1f} s: {error}") from error

    def stats(self) -> dict[str, float]:
        """Return the figures of every buffer, `name/figure`."""
        return {
            f"{name}/{figure}": value
            for name, buffer in self._buffers.items()
            for figure, value in buffer.stats().items()
        }

    def close(self) -> None:
        """Close every buffer."""
        for buffer in self._buffers.values():
            buffer.close()
