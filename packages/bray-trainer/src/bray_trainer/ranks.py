"""The trainers that step together, one a process; here there is only this one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.nn import Parameter


class Ranks:
    """What a training loop asks of the others; alone it answers itself."""

    rank = 0
    size = 1

    @property
    def is_first(self) -> bool:
        """Whether this one publishes and writes checkpoints."""
        return self.rank == 0

    def average(
        self, parameters: Iterable[Parameter], weight: float, total: float | None = None
    ) -> float:
        """Replace the gradients by their weighted mean over the ranks; return the weights' sum.

        Args:
            parameters: the same on each rank, in the same order.
            weight: samples of this rank's batches; 0 where it had none.
            total: the weights' sum over the ranks, where it is known.
        """
        return weight

    def agree(self, state: int) -> int:
        """Return the smallest `state` of all ranks."""
        return state

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of `values` over the ranks."""
        return values

    def gather(self, value: Any) -> list[Any]:
        """Return the plain value of each rank, in their order."""
        return [value]
