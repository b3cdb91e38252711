"""Weights of a torch module by name: what may be published to it, and how it is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from bray_core.errors import SpecError


class ModuleWeights:
    """The weights of a module, checked as a whole before the first of them is written.

    Args:
        module: The module; its parameters are written to in place.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._tensors = dict(module.state_dict(keep_vars=False))
        self._twins: dict[str, list[str]] = {}
        by_memory: dict[tuple[int, torch.Size], list[str]] = {}
        for name, tensor in self._tensors.items():
            by_memory.setdefault((tensor.data_ptr(), tensor.shape), []).append(name)
        for names in by_memory.values():
            for name in names:
                self._twins[name] = names

    def by_name(self) -> Mapping[str, torch.Tensor]:
        """Return the tensors themselves, not to be written to."""
        return self._tensors

    def check(self, weights: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return weights as tensors, after a look at each.

        Raises:
            SpecError: One is missing, unexpected, of another shape or not finite; names it.
        """
        if not isinstance(weights, Mapping):
            raise SpecError(f"weights: expected name → tensor, got {type(weights).__name__}")
        unknown = sorted(map(str, set(weights) - set(self._tensors)))
        if unknown:
            raise SpecError(
                f"weights: unexpected {_some(unknown)}: expected the names of the module's "
                f"state_dict, such as {next(iter(self._tensors))!r}"
            )
        missing = [
            name
            for name, twins in self._twins.items()
            if not any(twin in weights for twin in twins)
        ]
        if missing:
            raise SpecError(f"weights: missing {_some(missing)}")
        return {name: self._tensor(name, value) for name, value in weights.items()}

    def _tensor(self, name: str, given: Any) -> torch.Tensor:
        if isinstance(given, np.ndarray):
            given = torch.from_numpy(np.require(given, requirements=["C", "W"]))
        if not isinstance(given, torch.Tensor):
            raise SpecError(f"weights: {name}: expected a tensor, got {type(given).__name__}")
        value: torch.Tensor = given.detach()
        expected = self._tensors[name].shape
        if value.shape != expected:
            raise SpecError(
                f"weights: {name}: expected shape {tuple(expected)}, got {tuple(value.shape)}"
            )
        if value.is_floating_point() and value.numel():
            least, most = torch.aminmax(value)
            if not bool(torch.isfinite(least) & torch.isfinite(most)):
                count = int((~torch.isfinite(value)).sum())
                raise SpecError(
                    f"weights: {name}: {count} of {value.numel()} numbers are not finite: the "
                    "training that made them diverged"
                )
        return value

    @torch.no_grad()
    def write(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Write weights that were checked."""
        for name, value in weights.items():
            self._tensors[name].copy_(value)


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
