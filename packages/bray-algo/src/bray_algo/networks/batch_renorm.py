"""Batch renormalisation, which lets critics learn without target networks (CrossQ).

Ioffe 2017, "Batch renormalization: towards reducing minibatch dependence in batch-normalized
models" (arXiv 1702.03275); Bhatt et al. 2024, "CrossQ: batch normalization in deep reinforcement
learning for greater sample efficiency and simplicity".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from bray_algo.networks.initialisation import orthogonal_
from bray_algo.validation.scalars import check_limit, check_not_negative, check_positive
from bray_algo.validation.switch import is_traced
from bray_algo.validation.tensors import check_floats


class BatchRenorm(nn.Module):
    """Normalises features by their batch in training, and by what was seen so far in `eval()`.

    In training x̂ = (x − μ_B) / σ_B · r + d with r = σ_B / σ and d = (μ_B − μ) / σ, constants that
    are held within bounds (Ioffe 2017, Algorithm 1): within these the output is that of `eval()`.
    During the first `warmup` batches r = 1 and d = 0, which is plain batch normalisation, as the
    running figures are those of a network that has only begun. Scale and shift are learned.

    The running figures are buffers: published, saved and exported with the model.

    Args:
        size: Number of features D.
        momentum: Share of the running figures that each batch replaces. Too large and they follow
            single batches, too small and they lag behind the network: 0.001 to 0.1.
        warmup: Batches of plain batch normalisation at the start; 100,000 in CrossQ.
        most_scale: Bound of r, from 1 / most_scale to most_scale. 1 is batch normalisation again.
        most_shift: Bound of d, on both sides.
        epsilon: Number added to the variance.

    Examples:
        >>> layer = BatchRenorm(2)
        >>> layer(torch.tensor([[0.0, 5.0], [2.0, 9.0]])).detach().round(decimals=2)
        tensor([[-1., -1.],
                [ 1.,  1.]])
    """

    mean: Tensor
    variance: Tensor
    num_batches: Tensor

    def __init__(
        self,
        size: int,
        *,
        momentum: float = 0.01,
        warmup: int = 100_000,
        most_scale: float = 3.0,
        most_shift: float = 5.0,
        epsilon: float = 1e-3,
    ) -> None:
        super().__init__()
        if not 0.0 < momentum <= 1.0:
            raise ValueError(f"momentum: expected more than 0 and at most 1, got {momentum}")
        check_not_negative("warmup", warmup)
        check_limit("most_scale", most_scale)
        check_not_negative("most_shift", most_shift)
        check_positive("epsilon", epsilon)
        self.momentum, self.warmup, self.epsilon = momentum, warmup, epsilon
        self.most_scale, self.most_shift = most_scale, most_shift
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("variance", torch.ones(size))
        self.register_buffer("num_batches", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Return features `[…, D]` normalised, scaled and shifted.

        Raises:
            ValueError: there are not D features.
        """
        check_floats("x", x)
        if not is_traced() and x.shape[-1:] != self.mean.shape:
            raise ValueError(f"x: expected [..., {len(self.mean)}], got shape {tuple(x.shape)}")
        if not self.training:
            normed = (x - self.mean) * torch.rsqrt(self.variance + self.epsilon)
            return normed * self.weight + self.bias
        rows = x.reshape(-1, x.shape[-1])
        mean, variance = rows.mean(0), rows.var(0, unbiased=False)
        scale, shift = self._correction(mean.detach(), variance.detach())
        normed = (x - mean) * torch.rsqrt(variance + self.epsilon) * scale + shift
        self._follow(mean.detach(), variance.detach())
        return normed * self.weight + self.bias

    def _correction(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Return r and d `[D]`, by the running figures of before this batch."""
        std = (self.variance + self.epsilon).sqrt()
        scale = (variance + self.epsilon).sqrt() / std
        shift = (mean - self.mean) / std
        # Chosen by value, not by a branch: a GPU need not be waited for.
        is_warm = self.num_batches >= self.warmup
        scale = scale.clamp(1.0 / self.most_scale, self.most_scale)
        shift = shift.clamp(-self.most_shift, self.most_shift)
        return (
            torch.where(is_warm, scale, torch.ones_like(scale)),
            torch.where(is_warm, shift, torch.zeros_like(shift)),
        )

    @torch.no_grad()
    def _follow(self, mean: Tensor, variance: Tensor) -> None:
        self.mean.lerp_(mean, self.momentum)
        self.variance.lerp_(variance, self.momentum)
        self.num_batches.add_(1)


def renormed_mlp(
    sizes: Sequence[int],
    activation: Callable[[], nn.Module] = nn.ReLU,
    *,
    output_gain: float = 1.0,
) -> nn.Sequential:
    """Return a perceptron with a `BatchRenorm` before each of its layers, the first included.

    Arguments as those of `mlp`.

    Raises:
        ValueError: fewer than two sizes, or one that is not positive.
    """
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(f"sizes: expected two or more positive sizes, got {list(sizes)}")
    layers: list[nn.Module] = []
    for index in range(len(sizes) - 1):
        is_last = index == len(sizes) - 2
        layer = nn.Linear(sizes[index], sizes[index + 1])
        layers.append(BatchRenorm(sizes[index]))
        layers.append(orthogonal_(layer, output_gain if is_last else math.sqrt(2)))
        if not is_last:
            layers.append(activation())
    return nn.Sequential(*layers)
