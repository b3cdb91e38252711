"""Curiosity by random network distillation (RND): what is new is hard to predict.

Burda et al. 2019, "Exploration by random network distillation". To use it, take observations in by
`observations.update`, take the `bonus` of each step's next observation, add it to the reward (or
give it its own value head, with its own γ), and train the predictor by `loss`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bray_algo.losses.reductions import LossTerms, masked_mean
from bray_algo.networks.normalisation import RunningNorm
from bray_algo.precision import wide
from bray_algo.validation.scalars import check_fraction
from bray_algo.validation.tensors import (
    check_flags,
    check_integers,
    check_numbers,
    check_rank,
    check_shape,
    check_tensor,
)
from bray_algo.validation.values import check_finite


class RandomNetworkDistillation(nn.Module):
    """A fixed random network, a predictor of its features, and the statistics that scale both.

    Args:
        target: Network that maps observations `[N, …]` to features `[N, F]`; frozen here.
        predictor: Network of the same inputs and outputs with other weights, which learns.
        observation_shape: Shape of one observation.
        clip: Bound of normalised observations, in standard deviations; usually 5 (§2.4). Without
            one a rare reading gives a bonus of its own; a small one hides what is new.

    Examples:
        >>> make = lambda: nn.Linear(4, 8)
        >>> curiosity = RandomNetworkDistillation(make(), make(), (4,))
        >>> curiosity(torch.zeros(3, 4)).shape
        torch.Size([3])
    """

    def __init__(
        self,
        target: nn.Module,
        predictor: nn.Module,
        observation_shape: Sequence[int],
        *,
        clip: float = 5.0,
    ) -> None:
        super().__init__()
        self.target = target.requires_grad_(False)
        self.predictor = predictor
        self.observations = RunningNorm(observation_shape, clip)
        self.sums = RunningNorm(())

    def forward(self, observation: Tensor) -> Tensor:
        """Return ‖predictor − target‖² / F of observations `[N, …]`: `[N]`, with gradient."""
        normal = self.observations(observation)
        with torch.no_grad():
            features: Tensor = self.target(normal)
        predicted: Tensor = self.predictor(normal)
        check_shape("predictor's features", predicted, features.shape)
        return (wide(predicted) - wide(features)).square().flatten(1).mean(1)

    @torch.no_grad()
    def bonus(
        self,
        next_observation: Tensor,
        length: Tensor,
        *,
        gamma: float = 0.99,
        carry: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the bonus `[T, B]` of time-major segments, and what to `carry` on, `[B]`.

        The bonus is the error over the running standard deviation of its discounted sums (§2.4),
        which take in these segments first, but not in `eval()`. Padding gives 0.

        Args:
            next_observation: Observation after each step, `[T, B, …]`.
            length: Number of valid steps of each segment, `[B]`.
            gamma: Discount of the sums, which know no end of an episode (§2.3); usually 0.99.
            carry: `carry` of the segments that these go on from, `[B]`; None begins at 0.

        Raises:
            ValueError: shapes do not agree.
        """
        check_tensor("next_observation", next_observation)
        check_integers("length", length)
        steps = next_observation.shape[:2]
        check_shape("length", length, steps[1:])
        valid = torch.arange(steps[0], device=length.device)[:, None] < length
        # Zeros for padding before the networks see it: NaN would spread over the batch.
        safe = next_observation.masked_fill(
            ~valid.reshape(*steps, *[1] * (next_observation.ndim - 2)), 0
        )
        error = self(safe.flatten(0, 1)).reshape(steps).masked_fill(~valid, 0.0)
        sums, carry = discounted_sums(error, length, gamma=gamma, carry=carry)
        if self.training:
            self.sums.update(sums, valid)
        # Only the deviation is divided out: with the mean taken off, what is known would be
        # punished.
        std = (self.sums.variance + self.sums.epsilon).sqrt()
        return wide(error) / std.to(sums.dtype), carry


def discounted_sums(
    error: Tensor, length: Tensor, *, gamma: float, carry: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return x_t = γ x_{t−1} + e_t, `[T, B]`, and x at each segment's end, `[B]`.

    The past's sum stands for the future's, which is not known yet. After the end, x stays.

    Raises:
        ValueError: shapes or types do not agree, or γ is out of range.
    """
    check_rank("error", error, "T, B")
    check_shape("length", length, error.shape[1:])
    check_fraction("gamma", gamma)
    check_integers("length", length)
    error = wide(error)
    last = torch.zeros_like(error[0]) if carry is None else wide(carry)
    check_shape("carry", last, error.shape[1:])
    sums = torch.empty_like(error)
    for t in range(len(error)):
        last = torch.where(t < length, gamma * last + error[t], last)
        sums[t] = last
    return sums, last


def loss(error: Tensor, keep: Tensor | None = None) -> tuple[Tensor, LossTerms]:
    """Return the mean error of the predictor, over the rows to `keep`.

    Burda et al. 2019, Algorithm 1. With many environments the paper trains on a random quarter of
    the rows, so that the predictor does not learn faster than the policy explores (§3.4).

    Args:
        error: Error that `RandomNetworkDistillation` gives, `[N]`, with gradient.
        keep: Rows that count, bool `[N]`; None is all. No row gives 0. The fewer count, the longer
            what is new stays so.

    Returns:
        The loss, and `error`, the mean of all rows.

    Raises:
        ValueError: shapes do not agree.
    """
    check_rank("error", error, "N")
    check_numbers("error", error)
    check_flags("keep", keep, error.shape)
    check_finite(error=error)
    return masked_mean(error, keep), {"error": wide(error).detach().mean()}
