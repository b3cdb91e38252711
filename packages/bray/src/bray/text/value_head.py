"""A layer for the values of tokens on a language model: trained with it, and never published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

NAME = "value_head"
"""Name of the layer within the module that is trained."""


def add_value_head(module: Any) -> None:
    """Add a linear layer, hidden state → value, to a model of transformers; it begins at 0.

    A second model for the values would need the memory of a second model.

    Args:
        module: the model, with or without adapters; its `config` says how wide it is.
    """
    head = nn.Linear(module.config.get_text_config().hidden_size, 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    module.add_module(NAME, head)


def without_value_head(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return weights without those of the layer, which no sampler has."""
    return {name: leaf for name, leaf in weights.items() if not name.startswith(f"{NAME}.")}
