"""The transform h that keeps values of great rewards within a network's reach, and its inverse.

Pohlen et al. 2018, "Observe and look further: achieving consistent performance on Atari",
proposition A.2: the network learns h(Q), and targets are h(r + d h⁻¹(Q')). As h grows strictly, it
composes with any target: `rescale(dqn.target(unrescale(next_q), reward, discount))`. ε keeps the
inverse from growing without bound; 1e-3 to 1e-2 is usual, and 0 only takes the square root.
"""

from __future__ import annotations

from torch import Tensor

from bray_algo.precision import wide
from bray_algo.validation.scalars import check_not_negative
from bray_algo.validation.tensors import check_numbers


def rescale(value: Tensor, epsilon: float = 1e-3) -> Tensor:
    """Return h(z) = sign(z) (√(|z| + 1) − 1) + ε z, in the same shape.

    Written as sign(z) |z| / (√(|z| + 1) + 1) + ε z, which is exact near 0.

    Raises:
        ValueError: ε is negative.
    """
    value = _checked(value, epsilon)
    return value / ((value.abs() + 1).sqrt() + 1) + epsilon * value


def unrescale(value: Tensor, epsilon: float = 1e-3) -> Tensor:
    """Return h⁻¹(x), in the same shape.

    With u = √(|z| + 1) − 1, h is the quadratic ε u² + (1 + 2ε) u = |x|. Its stable root is taken:
    the paper's closed form loses all digits near 0 in float32.

    Raises:
        ValueError: ε is negative.
    """
    value = _checked(value, epsilon)
    size, b = value.abs(), 1 + 2 * epsilon
    u = 2 * size / (b + (b * b + 4 * epsilon * size).sqrt())
    return value.sign() * u * (u + 2)


def _checked(value: Tensor, epsilon: float) -> Tensor:
    """Return the value in float32 at least."""
    check_numbers("value", value)
    check_not_negative("epsilon", epsilon)
    return wide(value)
