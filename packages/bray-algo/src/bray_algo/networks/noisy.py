"""Linear layers whose weights carry learned noise, for exploration.

Fortunato et al. 2018, "Noisy networks for exploration", with factorised Gaussian noise.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class NoisyLinear(nn.Module):
    """A linear layer y = (μ + σ ⊙ ε) x, with noise ε in training mode and without in `eval()`.

    The noise stays until `redraw_noise_`: one draw serves all rows of a batch. Draw before each
    loss, for the online and the target network apart (Fortunato et al. 2018, §3.1).

    Args:
        in_features: Number D of input features.
        out_features: Units of the output.
        sigma: First scale σ₀ of the noise, which is σ₀ / √D; usually 0.1 to 0.5. Too large hides
            what was learned for long, too small hardly explores.

    Raises:
        ValueError: a size or σ₀ is not positive.

    Examples:
        >>> NoisyLinear(3, 2)(torch.zeros(5, 3)).shape
        torch.Size([5, 2])
    """

    input_noise: Tensor
    output_noise: Tensor

    def __init__(self, in_features: int, out_features: int, sigma: float = 0.5) -> None:
        super().__init__()
        if in_features < 1 or out_features < 1 or not 0 < sigma < math.inf:
            raise ValueError(
                "in_features, out_features, sigma: expected positive numbers, "
                f"got {in_features}, {out_features}, {sigma}"
            )
        bound, scale = 1 / math.sqrt(in_features), sigma / math.sqrt(in_features)
        shape = (out_features, in_features)
        self.weight = nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(out_features).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full(shape, scale))
        self.bias_sigma = nn.Parameter(torch.full((out_features,), scale))
        self.register_buffer("input_noise", torch.empty(in_features), persistent=False)
        self.register_buffer("output_noise", torch.empty(out_features), persistent=False)
        self.redraw()

    @torch.no_grad()
    def redraw(self, generator: torch.Generator | None = None) -> None:
        """Draw the noise anew."""
        for noise in (self.input_noise, self.output_noise):
            factorised_noise_(noise, generator)

    def forward(self, features: Tensor) -> Tensor:
        """Map features `[…, D]` to `[…, out_features]`."""
        if not self.training:
            return F.linear(features, self.weight, self.bias)
        # Factorised noise: D + outputs numbers to draw in place of D × outputs.
        weight_noise = torch.outer(self.output_noise, self.input_noise)
        weight = self.weight + self.weight_sigma * weight_noise
        return F.linear(features, weight, self.bias + self.bias_sigma * self.output_noise)

    def draws(self, features: Tensor, input_noise: Tensor, output_noise: Tensor) -> Tensor:
        """Map features `[B, D]` by M draws of the noise at once, to `[B, M, out_features]`.

        Args:
            features: Rows.
            input_noise: Noise of the inputs, `[M, D]`, as `factorised_noise` draws it.
            output_noise: Noise of the outputs, `[M, out_features]`, likewise.
        """
        mean = F.linear(features, self.weight, self.bias)
        deviation = F.linear(features[:, None] * input_noise, self.weight_sigma)
        return mean[:, None] + output_noise * (deviation + self.bias_sigma)


@torch.no_grad()
def factorised_noise_(noise: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Fill a tensor with f(ε), f(x) = sign(x) √|x|, ε normal (equations 10 and 11)."""
    noise.normal_(generator=generator)
    return noise.copy_(noise.sign() * noise.abs().sqrt())


def redraw_noise_(network: nn.Module, generator: torch.Generator | None = None) -> None:
    """Draw the noise of every `NoisyLinear` in a network anew."""
    for module in network.modules():
        if isinstance(module, NoisyLinear):
            module.redraw(generator)
