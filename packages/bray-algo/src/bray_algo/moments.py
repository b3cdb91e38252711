"""Running mean and variance of a stream."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bray_algo._columns import check_shape


class RunningMoments(nn.Module):
    """Mean and variance over all rows seen, each feature apart; saved with the model.

    Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample
    variances": exact however the rows are cut into batches. Begins with mean 0 and variance 1.

    Args:
        shape: of one row; `()` for numbers.
        floor: least standard deviation to divide by.

    Example:
        >>> moments = RunningMoments(())
        >>> moments.update(torch.tensor([1.0, 3.0]))
        >>> moments.mean.item(), moments.std().item()
        (2.0, 1.0)
    """

    count: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, shape: Sequence[int], *, floor: float = 1e-8) -> None:
        super().__init__()
        self.floor = floor
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(tuple(shape), dtype=torch.float64))
        self.register_buffer("variance", torch.ones(tuple(shape), dtype=torch.float64))

    @torch.no_grad()
    def update(self, rows: Tensor, valid: Tensor | None = None) -> None:
        """Take in rows `[…, *shape]`; those that are not `valid` (bool `[…]`) may hold anything.

        Raises:
            ValueError: shapes do not agree.
        """
        self._check(rows)
        if valid is not None:
            check_shape("valid", valid, rows.shape[: rows.ndim - self.mean.ndim])
            rows = rows[valid]
        rows = rows.reshape(-1, *self.mean.shape).to(self.mean.dtype)
        if not len(rows):
            return
        total = self.count + len(rows)
        variance, mean = torch.var_mean(rows, 0, correction=0)
        share, apart = len(rows) / total, mean - self.mean
        old_share = self.count / total  # 0 at first: the initial variance is forgotten
        spread = old_share * self.variance + share * variance + old_share * share * apart.square()
        self.variance.copy_(spread)
        self.mean.add_(share * apart)
        self.count.copy_(total)

    def std(self) -> Tensor:
        """Return the standard deviation, in a row's shape, at least the floor."""
        return self.variance.sqrt().clamp(min=self.floor)

    def forward(self, rows: Tensor) -> Tensor:
        """Return (rows − mean) / std, in the rows' own type (float32 of integers)."""
        self._check(rows)
        rows = rows if rows.is_floating_point() else rows.float()
        return (rows - self.mean.to(rows.dtype)) / self.std().to(rows.dtype)

    def _check(self, rows: Tensor) -> None:
        tail = rows.shape[max(rows.ndim - self.mean.ndim, 0) :]
        if tail != self.mean.shape:
            raise ValueError(
                f"rows: expected […, {', '.join(map(str, self.mean.shape))}], "
                f"got shape {tuple(rows.shape)}"
            )
