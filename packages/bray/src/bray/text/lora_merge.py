"""LoRA adapters merged into the weights that they change: what is published has no adapters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bray_core.errors import ConfigError

_PREFIX = "base_model.model."
_BASE, _A, _B = ".base_layer.", ".lora_A.", ".lora_B."

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class LoraMerge:
    """How the adapters of a model are merged: W + scale · B A.

    Hu et al. 2021, "LoRA: low-rank adaptation of large language models", equation 3.
    """

    scale: float
    """alpha / rank."""
    transposed: frozenset[str] = frozenset()
    """Adapted layers whose weight is `[inputs, outputs]`, such as those of GPT-2, by name."""

    @classmethod
    def of(cls, module: Any, scale: float) -> LoraMerge:
        """Return how the adapters of a peft model are merged.

        Raises:
            ConfigError: a layer's adapter cannot be merged; names it.
        """
        from peft.tuners.lora import Linear
        from peft.tuners.tuners_utils import BaseTunerLayer

        names: dict[int, list[str]] = {}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            plain = name.removeprefix(_PREFIX).replace(_BASE, ".")
            names.setdefault(id(parameter), []).append(plain)
        transposed = set()
        for name, layer in module.named_modules():
            if not isinstance(layer, BaseTunerLayer):
                continue
            plain = name.removeprefix(_PREFIX)
            base = layer.get_base_layer()
            if not isinstance(layer, Linear):
                raise ConfigError(
                    f"lora_targets: expected linear layers, got {plain}, which is "
                    f"{type(base).__name__}: an adapter there cannot be merged"
                )
            if len(shared := names[id(base.weight)]) > 1:
                raise ConfigError(
                    f"lora_targets: {plain} shares its weight ({', '.join(sorted(shared))}): adapt "
                    "layers that have their own"
                )
            if layer.fan_in_fan_out:
                transposed.add(name)
        return cls(scale, frozenset(transposed))

    def merged(self, weights: Mapping[str, Array]) -> dict[str, Array]:
        """Return the weights of the model without adapters.

        Args:
            weights: arrays by the names that peft gives them.
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
                change = high @ low
                if stem in self.transposed:
                    change = change.T
                value = (value.astype(np.float32) + self.scale * change).astype(value.dtype)
            found[plain.replace(_BASE, ".")] = value
        return found
