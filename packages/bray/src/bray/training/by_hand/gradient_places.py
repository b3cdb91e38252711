"""Where a step by hand writes gradients, so that an optimiser need not copy them."""

from __future__ import annotations

import torch
from torch import nn

from bray_trainer.flat_adam import FlatAdam


class GradientPlaces:
    """Memory for the gradient of each of a module's parameters.

    Args:
        module: what is trained.
        optimizer: its optimiser; one that joins the gradients has them where it wants them.
    """

    def __init__(self, module: nn.Module, optimizer: object) -> None:
        self._parameters = list(module.parameters())
        self._places = (
            optimizer.gradient_views
            if isinstance(optimizer, FlatAdam)
            else [torch.empty_like(parameter) for parameter in self._parameters]
        )

    def take(self) -> None:
        """Make these places the parameters' `grad`; what is in them is of an earlier step."""
        for parameter, place in zip(self._parameters, self._places, strict=True):
            parameter.grad = place
