"""Running mean and variance of observations, which travel with the model.

Welford 1962, "Note on a method for calculating corrected sums of squares and products"; batches
are joined as in Chan, Golub & LeVeque 1979, "Updating formulae and a pairwise algorithm".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bray_algo.precision import wide
from bray_algo.validation.scalars import check_limit, check_positive
from bray_algo.validation.switch import is_validated
from bray_algo.validation.tensors import check_flags, check_tensor


class Moments(NamedTuple):
    """Statistics of some rows.

    Attributes:
        num_rows: Number of rows, an int64 scalar.
        mean: Mean of each feature, float64.
        variance: Variance of each feature (divided by the number of rows), float64.
    """

    num_rows: Tensor
    mean: Tensor
    variance: Tensor


def moments(x: Tensor, num_axes: int = 1, mask: Tensor | None = None) -> Moments:
    """Return the statistics of rows `[…, *features]`.

    Args:
        x: Rows of any number type.
        num_axes: Number of axes at the end that are the features'.
        mask: Rows that count, bool `[…]`; the others may hold anything. None is all.

    Raises:
        ValueError: shapes do not agree.
    """
    check_tensor("x", x)
    if not 0 <= num_axes <= x.ndim:
        raise ValueError(f"num_axes: expected 0 to {x.ndim}, got {num_axes}")
    rows = tuple(x.shape[: x.ndim - num_axes])
    mask = torch.ones(rows, dtype=torch.bool, device=x.device) if mask is None else mask
    check_flags("mask", mask, rows)
    flat = x.double().reshape(mask.numel(), *x.shape[x.ndim - num_axes :])
    dropped = ~mask.reshape(-1, *[1] * num_axes)
    count = mask.sum()
    divisor = count.clamp(min=1)
    mean = flat.masked_fill(dropped, 0.0).sum(0) / divisor
    variance = (flat - mean).masked_fill(dropped, 0.0).square().sum(0) / divisor
    return Moments(count, mean, variance)


def merge(a: Moments, b: Moments) -> Moments:
    """Return the statistics of the rows of both: in any order and grouping the same.

    Raises:
        ValueError: the features' shapes differ.
    """
    if a.mean.shape != b.mean.shape:
        raise ValueError(f"b: expected features {tuple(a.mean.shape)}, got {tuple(b.mean.shape)}")
    count = a.num_rows + b.num_rows
    share = b.num_rows / count.clamp(min=1).double()
    distance = b.mean - a.mean
    # What the two means lie apart is variance, too (Chan et al. 1979).
    between = distance.square() * share * (1.0 - share)
    within = a.variance * (1.0 - share) + b.variance * share
    return Moments(count, a.mean + distance * share, within + between)


class RunningNorm(nn.Module):
    """Normalises by the mean and deviation of all rows seen: clip((x − mean) / √(variance + ε)).

    The statistics are buffers: published, saved and exported with the model. `forward` never
    changes them; `update` does, and in `eval()`, where they are frozen, it is refused. Workers that
    see different rows send `moments(…)` of these to one place, which merges them:
    `norm.update_with(theirs)`. The ranks of DDP need that too, as DDP copies rank 0's buffers over
    all others.

    They stay float64, also when the module around them goes to half precision, and the mean is
    taken off in float64: of clocks near 1.7e9, float32 cannot tell two minutes apart.

    Args:
        shape: Shape of one row's features.
        clip: Bound of the normalised numbers on both sides, usually 5 to 10. It keeps a rare
            reading from throwing the network off; small ones hide what is far from the mean.
        epsilon: Number added to the variance, so that a constant feature becomes 0.

    Examples:
        >>> norm = RunningNorm([2])
        >>> norm.update(torch.tensor([[0.0, 5.0], [2.0, 5.0]]))
        >>> norm(torch.tensor([[2.0, 5.0]])).round(decimals=3)
        tensor([[1., 0.]])
    """

    num_rows: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, shape: Sequence[int], clip: float = 10.0, epsilon: float = 1e-8) -> None:
        super().__init__()
        check_limit("clip", clip)
        check_positive("epsilon", epsilon)
        self.clip, self.epsilon = clip, epsilon
        self.register_buffer("num_rows", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(tuple(shape), dtype=torch.float64))
        self.register_buffer("variance", torch.ones(tuple(shape), dtype=torch.float64))

    @torch.no_grad()
    def update(self, x: Tensor, mask: Tensor | None = None) -> None:
        """Take in rows `[…, *shape]`.

        Args:
            x: Rows of any number type.
            mask: Rows that count, bool `[…]`; None is all.

        Raises:
            ValueError: the module is in `eval()`, shapes do not agree, or a number is not finite.
                Unseen, where values are not checked (`validation`), it would stay for ever.
        """
        self._check_training()
        self._check(x)
        seen = moments(x, self.mean.ndim, mask)
        if is_validated(x) and not bool((seen.mean.isfinite() & seen.variance.isfinite()).all()):
            raise ValueError(f"x: expected finite numbers, got some that are not in {_where(x)}")
        self.update_with(seen)

    @torch.no_grad()
    def update_with(self, seen: Moments) -> None:
        """Take in the statistics of rows seen elsewhere.

        Raises:
            ValueError: the module is in `eval()`.
        """
        self._check_training()
        for name, value in merge(self.moments, seen)._asdict().items():
            getattr(self, name).copy_(value)

    @property
    def moments(self) -> Moments:
        """The statistics of all rows so far."""
        return Moments(self.num_rows, self.mean, self.variance)

    def forward(self, x: Tensor) -> Tensor:
        """Return rows `[…, *shape]` normalised, floats in their own type and others in float32.

        Raises:
            ValueError: the features' shape differs.
        """
        self._check(x)
        kind = x.dtype if x.dtype.is_floating_point else torch.float32
        # Float64 until the mean is off: great numbers close together stay apart.
        normed = (x.double() - self.mean) * torch.rsqrt(self.variance + self.epsilon)
        return normed.clamp(-self.clip, self.clip).to(kind)

    def denormalise(self, x: Tensor) -> Tensor:
        """Return rows `[…, *shape]` of normalised numbers in their own scale again.

        Their type is float32 at least: a great mean does not fit into half precision. A value
        function may be trained on normalised targets by this: Yu et al. 2022, "The surprising
        effectiveness of PPO in cooperative multi-agent games", §5.1.

        Raises:
            ValueError: the features' shape differs.
        """
        self._check(x)
        scale = torch.sqrt(self.variance + self.epsilon)
        return (x.double() * scale + self.mean).to(wide(x).dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RunningNorm:
        """Let the statistics follow to another device, but to no other type."""
        before = {name: getattr(self, name) for name in Moments._fields}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, exact in before.items():
            moved: Tensor = getattr(self, name)
            if moved.dtype != exact.dtype:
                setattr(self, name, exact.to(moved.device))
        return self

    def _check_training(self) -> None:
        if not self.training:
            raise ValueError(
                "update: expected a module in training mode, got one in eval(), whose statistics "
                "are frozen: call train() before, or do not update"
            )

    def _check(self, x: Tensor) -> None:
        check_tensor("x", x)
        wanted = tuple(self.mean.shape)
        if tuple(x.shape[max(0, x.ndim - len(wanted)) :]) != wanted:
            raise ValueError(f"x: expected shape [..., {wanted}], got {tuple(x.shape)}")


def _where(x: Tensor) -> str:
    bad = int((~x.isfinite()).sum())
    return f"shape {tuple(x.shape)} ({bad} of {x.numel()})"
