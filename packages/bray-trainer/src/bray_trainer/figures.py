"""What a trainer reports of one replay."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bray_core import nested
from bray_core.errors import BrayError, SpecError
from bray_core.layout import Packed


class Terms:
    """Means of the losses of one replay; they stay on the device until `means`."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    def add(self, terms: Mapping[str, Tensor | float]) -> None:
        """Add one value of each term.

        Raises:
            SpecError: a term is no scalar.
        """
        for name, term in terms.items():
            value = torch.as_tensor(term).detach()
            if value.ndim:
                raise SpecError(
                    f"loss: {name}: expected a scalar, got shape {tuple(value.shape)}: "
                    "reduce it, such as by mean()"
                )
            self._sums[name] = self._sums[name] + value if name in self._sums else value
            self._counts[name] = self._counts.get(name, 0) + 1

    def means(self, replay: int) -> dict[str, float]:
        """Return the mean of each term in the replay of that number.

        Raises:
            BrayError: one is not finite; names all of them.
        """
        means = {name: float(total) / self._counts[name] for name, total in self._sums.items()}
        if not all(map(math.isfinite, means.values())):
            terms = ", ".join(f"{name}={value:g}" for name, value in means.items())
            raise BrayError(f"loss: not finite in replay {replay}: {terms}")
        return means


def num_steps(replay: Packed) -> int | None:
    """Return the valid steps of a replay; None if its segments have no leaf `length`."""
    length = _leaves(replay).get("length")
    return None if length is None else int(length.sum())


def policy_lag(replay: Packed, version: int) -> float | None:
    """Return by how many versions the replay's valid steps are older than `version`, on average.

    None if its segments have no leaf `policy_version`, or no valid step.
    """
    leaves = _leaves(replay)
    versions, length = leaves.get("policy_version"), leaves.get("length")
    if versions is None:
        return None
    if length is not None and versions.ndim == 2:  # [B, T]
        versions = versions[np.arange(versions.shape[1]) < length[:, None]]
    return float(version - versions.mean()) if versions.size else None


def _leaves(replay: Packed) -> dict[str, Any]:
    return nested.flatten(replay.tree)
