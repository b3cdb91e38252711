"""What a backend must do: run a batch, take weights. Backends know nothing of batching."""

from __future__ import annotations

from typing import Protocol

from bray_core.nested import Nested
from bray_core.protocols import Weights


class Engine(Protocol):
    """One network in one process. Not thread-safe: its `Executor` runs one forward at a time."""

    def run(self, inputs: tuple[Nested, ...]) -> Nested:
        """Compute outputs, leaves `[B, ...]`, that share no memory with inputs or weights."""
        ...

    def weights(self) -> Weights | None:
        """Return the weights by name, not to be written to; None if they are fixed."""
        ...

    def load(self, weights: Weights) -> None:
        """Take weights of the same names, dtypes and shapes. They are never written to again."""
        ...

    def copy(self) -> Engine:
        """Return a separate engine of the same definition and weights."""
        ...
