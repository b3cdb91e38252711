"""Means of the losses of one replay."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import SupportsFloat

from torch import Tensor

from bray_core.errors import BrayError, SpecError
from bray_core.metrics.recording import is_name
from bray_trainer.distributed.ranks import Ranks


class LossMeans:
    """Means of the losses of one replay; sums of a GPU's values stay there until `means`."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor | float] = {}
        self._weights: dict[str, float] = {}

    def add(self, terms: Mapping[str, Tensor | float], weight: float = 1.0) -> None:
        """Add one value of each term.

        Args:
            terms: Scalars by name.
            weight: Weight of the values in the mean.

        Raises:
            SpecError: a term is not a scalar, or has a name that no metric may have.
        """
        for name, term in terms.items():
            if name not in self._sums and not is_name(f"trainer/{name}"):
                raise SpecError(
                    "loss: expected a term's name of letters, digits, '_', '-', '.' and '/', "
                    f"got {name!r}"
                )
            if getattr(term, "ndim", 0):
                raise SpecError(
                    f"loss: {name}: expected a scalar, got shape {tuple(term.shape)}: "  # type: ignore[union-attr]
                    "reduce it, such as by mean()"
                )
            if not isinstance(term, Tensor | SupportsFloat):
                raise SpecError(f"loss: {name}: expected a number, got {term!r:.100}")
            value = term.detach() if isinstance(term, Tensor) else float(term)
            if isinstance(value, Tensor) and value.device.type == "cpu":
                value = value.item()  # reading a GPU would wait for it
            self._sums[name] = self._sums.get(name, 0.0) + value * weight
            self._weights[name] = self._weights.get(name, 0.0) + weight

    def add_ranks(self, ranks: Ranks) -> None:
        """Add the other ranks' values, so that all have the same means."""
        if ranks.size == 1:
            return
        own = {name: [float(total), self._weights[name]] for name, total in self._sums.items()}
        joined = {name: pair for name, pair in ranks.sum_by_name(own).items() if any(pair)}
        self._sums = {name: pair[0] for name, pair in joined.items()}
        self._weights = {name: pair[1] for name, pair in joined.items()}

    def means(self, replay: int) -> dict[str, float]:
        """Return the mean of each term in the replay of that number.

        Raises:
            BrayError: a mean is not finite; the message names all of them.
        """
        means = {
            name: float(total) / (self._weights[name] or 1.0) for name, total in self._sums.items()
        }
        if not all(map(math.isfinite, means.values())):
            terms = ", ".join(f"{name}={value:g}" for name, value in means.items())
            raise BrayError(f"loss: not finite in replay {replay}: {terms}")
        return means
