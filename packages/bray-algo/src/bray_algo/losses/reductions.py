"""Means over the samples that count, which every loss here ends in.

A column is a tensor with one number per sample; all columns of a call have one shape. `valid`
(bool, the same shape) says which samples count, and None that all do. The samples that do not
count may hold anything, NaN too, and get no gradient.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bray_algo.precision import wide
from bray_algo.validation.tensors import check_numbers, check_shape
from bray_algo.validation.values import check_finite

LossTerms = dict[str, Tensor]
"""Parts and measures of a loss by name, such as `policy_loss` or `approx_kl`: scalars without
gradient, for logging."""


def masked(valid: Tensor | None, *columns: Tensor) -> tuple[Tensor, ...]:
    """Return the columns in float32 at least, with zeros, which have no gradient, where not valid.

    Filled, not multiplied: 0 times NaN is NaN.
    """
    if valid is None:
        return tuple(wide(column) for column in columns)
    return tuple(wide(column).masked_fill(~valid, 0) for column in columns)


def masked_mean(column: Tensor, valid: Tensor | None = None) -> Tensor:
    """Return the mean over the valid samples, 0 if there is none; in float32 at least."""
    column = wide(column)
    if valid is None:
        return column.mean()
    return column.masked_fill(~valid, 0).sum() / valid.sum().clamp(min=1)


def standardised(
    column: Tensor,
    valid: Tensor | None = None,
    epsilon: float = 1e-8,
    *,
    is_by_row: bool = False,
) -> Tensor:
    """Return (x − mean) / (σ + ε) over the valid samples, zeros elsewhere, without gradient.

    Used to normalise advantages, so that the size of rewards does not set the step of the policy.
    σ² is the mean square (divided by N, not N − 1): one sample, or several equal ones, give 0 and
    not NaN. Inside, numbers are float64 and centred twice: what rounding leaves of equal rows
    would else be blown up to ±1.

    Args:
        column: Numbers to normalise, of any shape.
        valid: Samples that count, bool; None is all.
        epsilon: Added to σ, so that equal numbers give 0 and not 0 / 0.
        is_by_row: Whether each row of the last dimension has a mean and σ of its own; without
            `valid` alone.
    """
    centred = column.detach().double()
    if valid is None:
        return _standardised(centred, -1 if is_by_row else None, epsilon).to(wide(column).dtype)
    for _ in range(2):
        centred = centred - masked_mean(centred, valid)
    deviation = masked_mean(centred.square(), valid).sqrt()
    (result,) = masked(valid, (centred / (deviation + epsilon)).to(wide(column).dtype))
    return result


def _standardised(column: Tensor, dim: int | None, epsilon: float) -> Tensor:
    """Return float64 numbers standardised along a dimension, or all of them."""
    count = column.numel() if dim is None else column.shape[dim]
    for _ in range(2):
        column = column - column.mean(dim, keepdim=True)
    deviation = torch.linalg.vector_norm(column, dim=dim, keepdim=True) / math.sqrt(count)
    return column.div_(deviation + epsilon)


def weighted_mean(column: Tensor, weight: Tensor | None, valid: Tensor | None = None) -> Tensor:
    """Return Σ w ℓ / N over the valid samples, with a weight of 1 if none is given.

    The divisor stays N, as prioritised replay wants it (Schaul et al. 2016, Algorithm 1).
    """
    if weight is not None:
        check_numbers("weight", weight)
        check_shape("weight", weight, column.shape)
        check_finite(valid, weight=weight)
        column = weight.detach() * column
    return masked_mean(column, valid)
