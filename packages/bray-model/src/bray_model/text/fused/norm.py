"""Division by the root of the mean square, with few operations."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F


class Norm:
    """`x / sqrt(mean(x ** 2) + epsilon) * weight` over the last axis.

    Torch's own takes eight operations in fp32 on a CPU. Here the root of n times the bracket is
    found as the hypotenuse of the length of x and sqrt(n * epsilon), and sqrt(n) is in the weight.

    Args:
        weight: `[n]`.
        epsilon: What keeps the divisor from 0.
    """

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        self._weight = weight.detach()
        self._epsilon = epsilon
        self._is_plain = weight.device.type == "cpu" and weight.dtype == torch.float32
        self._least = torch.tensor(math.sqrt(len(weight) * epsilon))
        self._scaled = weight
        self.weights_changed()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the quotient times the weight, for `[..., n]`."""
        if not self._is_plain:
            return F.rms_norm(x, self._weight.shape, self._weight, self._epsilon)
        length = torch.linalg.vector_norm(x, 2, -1, True)
        return (x / torch.hypot(length, self._least)).mul_(self._scaled)

    def weights_changed(self) -> None:
        """Scale the new weight."""
        if self._is_plain:
            self._scaled = self._weight * math.sqrt(len(self._weight))
