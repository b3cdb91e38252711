"""LoRA adapters merged into the weights that they change: what is published has no adapters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

_PREFIX = "base_model.model."
_BASE, _A, _B = ".base_layer.", ".lora_A.", ".lora_B."

Array = npt.NDArray[Any]


def merged_weights(weights: Mapping[str, Array], scale: float) -> dict[str, Array]:
    """Return the weights of the model without adapters, W + scale · B A where there are some.

    Hu et al. 2021, "LoRA: low-rank adaptation of large language models", equation 3.

    Args:
        weights: arrays by the names that peft gives them.
        scale: alpha / rank.
    """
    found = {}
    for name, value in weights.items():
        plain = name.removeprefix(_PREFIX)
        if _A in plain or _B in plain:
            continue
        if _BASE in plain and plain.endswith(".weight"):
            stem = name[: name.index(_BASE)]
            low = weights[f"{stem}.lora_A.default.weight"].astype(np.float32)
            high = weights[f"{stem}.lora_B.default.weight"].astype(np.float32)
            value = (value.astype(np.float32) + scale * (high @ low)).astype(value.dtype)
        found[plain.replace(_BASE, ".")] = value
    return found
