"""Ragged, time-major segments `[T, B]`: which steps count, and what follows each.

Segment b has `length[b]` valid steps; what comes after is padding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bray_algo.validation.switch import is_readable
from bray_algo.validation.tensors import (
    check_flags,
    check_integers,
    check_numbers,
    check_rank,
    check_shape,
)
from bray_algo.validation.values import check_finite, is_suspect


def padding(
    reward: Tensor,
    final_value: Tensor,
    terminated: Tensor,
    length: Tensor,
    **columns: Tensor,
) -> Tensor | None:
    """Check the arguments and return which steps are not valid, bool `[T, B]`.

    The result is None where every segment is known to be full: filling what is not there costs a
    third of GAE. On a GPU and in compiled code that is never known, as no length is read there.
    """
    check_rank("reward", reward, "T, B")
    for name, column in columns.items():
        check_numbers(name, column)
        check_shape(name, column, reward.shape)
    check_flags("terminated", terminated, reward.shape)
    check_numbers("final_value", final_value)
    check_shape("final_value", final_value, reward.shape[1:])
    check_shape("length", length, reward.shape[1:])
    absent = after_end(reward, length)
    check_finite(None if absent is None else ~absent, reward=reward, **columns)
    if is_suspect(final_value):
        last = terminated.gather(0, length[None].long() - 1)[0]
        check_finite(~last, final_value=final_value)
    return absent


def after_end(reward: Tensor, length: Tensor) -> Tensor | None:
    """Return which steps are not valid, like `padding`, for arguments that were checked before."""
    if _shortest(length, len(reward)) == len(reward):
        return None
    time = torch.arange(len(reward), device=reward.device)[:, None]
    return time >= length


def blank(column: Tensor, padding: Tensor | None) -> Tensor:
    """Return the column with zeros in padding: filled, not multiplied, as it may hold NaN."""
    return column if padding is None else column.masked_fill(padding, 0.0)


def discount(gamma: float, terminated: Tensor, dtype: torch.dtype) -> Tensor:
    """Return γ for every step, but 0 where it terminated, `[T, B]`."""
    alive = (~terminated).view(torch.uint8)  # bytes convert several times as fast as bools
    return alive.to(dtype) * gamma


def following(value: Tensor, final_value: Tensor, terminated: Tensor, length: Tensor) -> Tensor:
    """Return V_{t+1} `[T, B]`; after each last valid step the final value, 0 if it terminated.

    After a termination inside a segment it is the next episode's value: multiply by the discount.
    """
    last = length[None].long() - 1
    final = final_value[None].masked_fill(terminated.gather(0, last), 0.0)
    shifted = torch.cat([value[1:], final])
    # The row after each segment's end holds padding: the final value takes its place.
    return shifted.scatter_(0, last, final.to(shifted.dtype))


def later(column: Tensor) -> Tensor:
    """Return x_{t+1}, `[T, B]`, with a row of zeros last."""
    return torch.cat([column[1:], torch.zeros_like(column[:1])])


def _shortest(length: Tensor, num_steps: int) -> int | None:
    """Return the least length, None where it must not be read (`validation.is_readable`)."""
    check_integers("length", length)
    if not is_readable(length):  # on a GPU the scatter in `following` asserts the range
        return None
    shortest, longest = (int(end) for end in length.aminmax())
    if shortest < 1 or longest > num_steps:
        raise ValueError(
            f"length: expected 1 to T={num_steps} valid steps, got {length.tolist()}: "
            "leave out segments without a step"
        )
    return shortest
