"""A mixture: each batch comes from one of several buffers, drawn by weight."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping

import numpy as np

from bray_core.errors import ClosedError, ConfigError, DeadlineError
from bray_core.layout import Layout, Packed
from bray_core.nested import Nested
from bray_core.protocols import Buffer


class Mixture:
    """Pops from several buffers; what is pushed goes to one of them, by its own `push`.

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
        (first, layout), *rest = [(name, buffer.layout) for name, buffer in self._buffers.items()]
        for name, other in rest:
            if other != layout:
                raise ConfigError(
                    f"buffers: expected one layout in all of them, got {layout.id} in {first!r} "
                    f"and {other.id} in {name!r}"
                )
        self._layout = layout
        self._random = np.random.default_rng(seed)
        self._lock = threading.Lock()
        self._owed: list[str] = []
        self.set_weights({name: weight for name, (_, weight) in buffers.items()})

    @property
    def layout(self) -> Layout:
        """The packed layout of one segment."""
        return self._layout

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Change the weights of all buffers, from the next draw on.

        Raises:
            ConfigError: other names, a negative weight, or all weights 0.
        """
        if set(weights) != set(self._buffers):
            raise ConfigError(f"weights: expected {sorted(self._buffers)}, got {sorted(weights)}")
        total = sum(weights.values())
        if not math.isfinite(total) or min(weights.values()) < 0 or total <= 0:
            raise ConfigError(f"weights: expected 0 or more and one above 0, got {dict(weights)}")
        self._shares = [weights[name] / total for name in self._buffers]

    def push(
        self, *segments: Packed | Nested, wait: bool = False, timeout_s: float | None = None
    ) -> int:
        """Refuse: which buffer would it be?"""
        raise ConfigError(
            f"mixture: push to one of its buffers instead: {', '.join(self._buffers)}"
        )

    def pop(self, timeout_s: float | None = None) -> Packed:
        """Return a batch of the drawn buffer.

        Waits for that one, and after a DeadlineError goes on waiting for it at the next call, so
        that the shares of batches are those of the weights however fast each buffer fills.

        Raises:
            DeadlineError: it has no batch within `timeout_s`; names it.
            ClosedError: it was closed.
        """
        name = self._draw()
        started = time.monotonic()
        try:
            return self._buffers[name].pop(timeout_s)
        except DeadlineError as error:
            with self._lock:
                self._owed.append(name)
            waited_s = time.monotonic() - started
            raise DeadlineError(f"mixture: {name!r} waited {waited_s:.1f} s: {error}") from error

    def _draw(self) -> str:
        with self._lock:
            if self._owed:
                return self._owed.pop(0)
            return str(self._random.choice(list(self._buffers), p=self._shares))

    def __iter__(self) -> Iterator[Packed]:
        """Yield batches until a drawn buffer is closed."""
        while True:
            try:
                yield self.pop()
            except ClosedError:
                return

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
