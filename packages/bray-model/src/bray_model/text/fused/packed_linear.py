"""A matrix product whose weights are also kept in oneDNN's own order, where that is quicker."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

_LEAST_NUMBERS = 512 * 512
"""Weights below this are in the processor's cache, where the order matters little."""
_LEAST_ROWS, _MOST_ROWS = 2, 128
"""Between these torch's own product reads the weights in an order that fits it badly."""


class PackedLinear:
    """`x @ weight.T + bias`.

    Which way is taken depends on the sizes alone, so that a run repeats bit for bit.

    Args:
        weight: `[outputs, inputs]`.
        bias: `[outputs]`, or None.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight = weight.detach()
        self.bias = None if bias is None else bias.detach()
        self._transposed = self.weight.t()
        self._may_pack = (
            weight.device.type == "cpu"
            and weight.dtype == torch.float32
            and weight.numel() >= _LEAST_NUMBERS
            and bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
        )
        self._packed: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product for `[N, inputs]`."""
        if self._may_pack and _LEAST_ROWS <= x.shape[0] <= _MOST_ROWS:
            product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
                x, self._pack(), self.bias, "none", [], ""
            )
            return product
        return F.linear(x, self.weight, self.bias)

    def add_to(self, summand: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return `summand` plus the product; `summand` may be written to."""
        if self._may_pack and _LEAST_ROWS <= x.shape[0] <= _MOST_ROWS:
            total: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(
                x, summand, self._pack(), self.bias, "add"
            )
            return total
        if self.bias is not None:
            summand += self.bias
        return summand.addmm_(x, self._transposed)

    def _pack(self) -> torch.Tensor:
        if self._packed is None:
            self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight, 32)
        return self._packed

    def weights_changed(self) -> None:
        """Forget the packed weights: they are packed again when they are used."""
        self._packed = None


@torch.no_grad()
def joined(linears: Sequence[torch.nn.Linear]) -> PackedLinear:
    """Join the weights of layers with one input; the layers' own become views."""
    weight = torch.cat([linear.weight.data for linear in linears])
    begin = 0
    for linear in linears:
        linear.weight.data = weight[begin : begin + linear.out_features]
        begin += linear.out_features
    biases = [linear.bias.data for linear in linears if linear.bias is not None]
    if not biases:
        return PackedLinear(weight, None)
    bias = torch.cat(biases)
    begin = 0
    for linear in linears:
        linear.bias.data = bias[begin : begin + linear.out_features]
        begin += linear.out_features
    return PackedLinear(weight, bias)
