"""The linear recurrence backwards in time that every return comes down to."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bray_algo.validation.tensors import check_rank, check_shape

_SHORT = 16
"""Number of steps up to which one row after the other is as quick."""


def discounted_sum(delta: Tensor, carry: Tensor) -> Tensor:
    """Return x_t = delta_t + carry_t x_{t+1}, `[T, B]`, zero after the end.

    A scan in blocks of W steps (Blelloch 1990, "Prefix sums and their applications", §1.4): within
    all blocks at once, each ending at zero; then from block to block; then what enters a block is
    added to its steps. That is 2W + T/W operations on whole rows in place of T, no division, and
    no error beyond that of the plain loop, because a product of carries enters once.

    Args:
        delta: What each step adds, `[T, B]`.
        carry: Factor on the sum after each step, `[T, B]`, finite.

    Raises:
        ValueError: shapes do not agree, or there is no step.
    """
    check_rank("delta", delta, "T, B")
    check_shape("carry", carry, delta.shape)
    num_steps = len(delta)
    if num_steps <= _SHORT:
        return _by_row(delta, carry, torch.zeros_like(delta[0]))
    width = round(math.sqrt(num_steps / 2))
    whole = num_steps - num_steps % width
    tail = _by_row(delta[whole:], carry[whole:], torch.zeros_like(delta[0]))
    entering = tail[0] if len(tail) else torch.zeros_like(delta[0])
    head = _by_block(delta[:whole], carry[:whole], entering, width)
    return torch.cat([head, tail]) if len(tail) else head


def _by_row(delta: Tensor, carry: Tensor, entering: Tensor) -> Tensor:
    """Return the recurrence that goes on with `entering [B]` after the last row."""
    rows = []
    for row, factor in zip(reversed(delta.unbind()), reversed(carry.unbind()), strict=True):
        entering = torch.addcmul(row, factor, entering)
        rows.append(entering)
    return torch.stack(rows[::-1]) if rows else delta


def _by_block(delta: Tensor, carry: Tensor, entering: Tensor, width: int) -> Tensor:
    """Return the recurrence over a whole number of blocks, going on with `entering [B]`."""
    blocks = (len(delta) // width, width, delta.shape[1])
    rows, factors = delta.reshape(blocks).unbind(1), carry.reshape(blocks).unbind(1)  # [T / W, B]
    sums, products = [rows[-1]], [factors[-1]]
    for row, factor in zip(reversed(rows[:-1]), reversed(factors[:-1]), strict=True):
        sums.append(torch.addcmul(row, factor, sums[-1]))
        products.append(factor * products[-1])
    # From block to block the carries of a whole block are one factor.
    first = _by_row(sums[-1], products[-1], entering)  # of each block, [T / W, B]
    entering = torch.cat([first[1:], entering[None]])
    within, product = torch.stack(sums[::-1], 1), torch.stack(products[::-1], 1)
    return torch.addcmul(within, product, entering[:, None]).reshape(delta.shape)
