"""Rows of a batch laid end to end into fewer, fuller ones, for the forward pass alone.

    rows     a a a . . .      packed   a a a b b b b b
             b b b b b .               c c d d d d . .
             c c . . . .
             d d d d . .

Positions begin at 0 with each row, by which the attention of transformers keeps rows apart. What a
pass computes is brought back to `[B, T]`, so that losses, means and masks know nothing of packing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedRows:
    """Rows of a batch, several in one; R packed rows of L tokens each."""

    tokens: Tensor
    """Token ids, `[R, L]`, 0 where nothing lies."""
    position: Tensor
    """Place of each token within its own row, `[R, L]`; what lies behind them is a row, too."""
    place: Tensor
    """Number of the place of each token in `tokens` laid flat, `[B, T]`; 0 for padding."""
    is_token: Tensor
    """Whether a token is one of its row, bool `[B, T]`, and no padding."""

    @classmethod
    def of(cls, tokens: Tensor, length: Tensor, size: int) -> PackedRows:
        """Return rows packed, the longest first, each into the first row that has room.

        Args:
            tokens: token ids, `[B, T]`, padded at the right.
            length: number of tokens of each row, `[B]`.
            size: tokens of a packed row; it is as long as the longest row where that is longer.
        """
        lengths: list[int] = length.tolist()
        size = max(size, *lengths)
        starts, used = _first_fit(lengths, size)
        span = torch.arange(tokens.shape[1], device=tokens.device)
        is_token = span < length[:, None]
        flat = torch.tensor(starts, device=tokens.device)[:, None] + span
        place = flat.masked_fill(~is_token, 0)
        width = max(used)
        # Rows of `size` tokens were filled; what none of them reaches is cut off.
        place = place // size * width + place % size
        packed = torch.zeros(len(used) * width, dtype=tokens.dtype, device=tokens.device)
        packed[place[is_token]] = tokens[is_token]
        behind = torch.cat([torch.arange(width, device=tokens.device) - end for end in used])
        behind[place[is_token]] = span.expand(tokens.shape)[is_token]
        shape = len(used), width
        return cls(
            tokens=packed.view(shape), position=behind.view(shape), place=place, is_token=is_token
        )

    def packed(self, flags: Tensor) -> Tensor:
        """Return flags of tokens, bool `[B, T]`, at their places, `[R, L]`; none at a row's first.

        No token before it in its own row predicts the first one.
        """
        chosen = flags & self.is_token
        chosen[:, 0] = False
        found = torch.zeros(self.tokens.numel(), dtype=torch.bool, device=flags.device)
        found[self.place[chosen]] = True
        return found.view(self.tokens.shape)

    def unpacked(self, column: Tensor) -> Tensor:
        """Return a number of each packed token, `[R, L]`, as `[B, T]`, 0 for padding."""
        return column.flatten()[self.place].masked_fill(~self.is_token, 0)


def _first_fit(lengths: list[int], size: int) -> tuple[list[int], list[int]]:
    """Return where each row begins, rows of `size` laid flat, and how much of each is used."""
    starts, used = [0] * len(lengths), [0]
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        bin_ = next((n for n, filled in enumerate(used) if filled + lengths[row] <= size), None)
        if bin_ is None:
            used.append(0)
            bin_ = len(used) - 1
        starts[row] = bin_ * size + used[bin_]
        used[bin_] += lengths[row]
    return starts, used
