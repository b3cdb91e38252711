"""What a trainer reports of one replay."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bray_core.errors import BrayError, SpecError
from bray_core.layout import Packed
from bray_trainer.ranks import Ranks


class LossTerms:
    """Means of the losses of one replay; they stay on the device until `means`."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._weights: dict[str, float] = {}

    def add(self, terms: Mapping[str, Tensor | float], weight: float = 1.0) -> None:
        """Add one value of each term.

        Args:
            terms: name → scalar.
            weight: how much they count in the mean.

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
            value = value if weight == 1 else value * weight
            self._sums[name] = self._sums[name] + value if name in self._sums else value
            self._weights[name] = self._weights.get(name, 0.0) + weight

    def join(self, ranks: Ranks) -> None:
        """Add the other ranks' values, so that all have the same means."""
        if ranks.size == 1:
            return
        own = {name: [float(total), self._weights[name]] for name, total in self._sums.items()}
        joined = {name: pair for name, pair in ranks.sum_by_name(own).items() if any(pair)}
        self._sums = {n: torch.tensor(pair[0], dtype=torch.float64) for n, pair in joined.items()}
        self._weights = {name: pair[1] for name, pair in joined.items()}

    def means(self, replay: int) -> dict[str, float]:
        """Return the mean of each term in the replay of that number.

        Raises:
            BrayError: one is not finite; names all of them.
        """
        means = {
            name: float(total) / (self._weights[name] or 1.0) for name, total in self._sums.items()
        }
        if not all(map(math.isfinite, means.values())):
            terms = ", ".join(f"{name}={value:g}" for name, value in means.items())
            raise BrayError(f"loss: not finite in replay {replay}: {terms}")
        return means


def num_steps(replay: Packed | Mapping[str, Packed]) -> int | None:
    """Return the valid steps of a replay; None if no segments of it have a leaf `length`."""
    found = [_leaf(part, "length") for part in _parts(replay)]
    lengths = [length for length in found if length is not None]
    return sum(int(length.sum()) for length in lengths) if lengths else None


def policy_lag(replay: Packed | Mapping[str, Packed], version: int) -> float | None:
    """Return by how many versions the replay's valid steps are older than `version`, on average.

    None if no segments of it have a leaf `policy_version`, or a valid step. Of several buffers
    the mean of theirs is returned.
    """
    lags = [lag for part in _parts(replay) if (lag := _lag(part, version)) is not None]
    return sum(lags) / len(lags) if lags else None


def _lag(part: Packed, version: int) -> float | None:
    versions, length = _leaf(part, "policy_version"), _leaf(part, "length")
    if versions is None:
        return None
    if length is not None and versions.ndim == 2:  # [B, T]
        versions = versions[np.arange(versions.shape[1]) < length[:, None]]
    return float(version - versions.mean()) if versions.size else None


def _parts(replay: Packed | Mapping[str, Packed]) -> Iterable[Packed]:
    """Return what came of each buffer."""
    return [replay] if isinstance(replay, Packed) else replay.values()


def _leaf(part: Packed, path: str) -> NDArray[Any] | None:
    """Return a leaf; without the views of all the others, which take longer than a small step."""
    for field in part.layout.fields:
        if field.path == path:
            raw = part.block[..., field.offset : field.offset + field.nbytes]
            return raw.view(field.dtype).reshape(*part.block.shape[:-1], *field.shape)
    return None
