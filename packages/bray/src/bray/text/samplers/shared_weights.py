"""Weights of a language model on their way to samplers in other processes, by the models' store.

The store of `bray_model.remote` holds the weights of a torch module. Here that is a module of the
weights alone, with the number of their version among them: so both arrive together.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from bray_core.errors import BrayError, ClosedError, DeadlineError
from bray_core.protocols import Weights
from bray_model.text.text_model import TextModel

logger = logging.getLogger(__name__)

_VERSION = "version"
_LOOK_S = 1.0


class WeightsCarrier(nn.Module):
    """A module of the weights of a language model that computes nothing.

    Args:
        weights: the weights, by name.
        version: their version.
    """

    def __init__(self, weights: Mapping[str, Any], version: int) -> None:
        super().__init__()
        for name, array in as_carried(weights, version).items():
            self.register_buffer(name, torch.from_numpy(array))

    def forward(self, rows: Tensor) -> Tensor:
        """Return what it is given."""
        return rows.clone()


def as_carried(weights: Mapping[str, Any], version: int) -> dict[str, npt.NDArray[Any]]:
    """Return weights by the names of the carrier, those that are tied to others left out.

    Args:
        weights: tensors by name.
        version: their version.
    """
    carried: dict[str, npt.NDArray[Any]] = {_VERSION: np.array(version, np.int64)}
    seen: set[tuple[int, torch.Size]] = set()
    for name, tensor in weights.items():
        where = tensor.data_ptr(), tensor.shape
        if where not in seen or not tensor.numel():
            seen.add(where)
            carried[name.replace(".", ":")] = tensor.detach().cpu().numpy()
    return carried


def as_published(carried: Weights) -> tuple[int, dict[str, Any]]:
    """Return the version and the weights, by the names of the language model."""
    weights = {n.replace(":", "."): array for n, array in carried.items() if n != _VERSION}
    return int(carried[_VERSION]), weights


class HoldsNewest(Protocol):
    """A handle on the store's model, in this process."""

    @property
    def version(self) -> int:
        """Number of the newest publish that has arrived."""
        ...

    async def wait_version(self, version: int, timeout_s: float | None = None) -> int:
        """Wait for a publish."""
        ...

    def weights(self) -> tuple[int, Weights]:
        """Return the number of the newest publish that has arrived, and what was published."""
        ...


class FollowedWeights:
    """Gives a model whatever is published, in a thread, also in mid-generation.

    Args:
        source: what has arrived of the store.
        model: what samples; nobody else publishes to it.
    """

    def __init__(self, source: HoldsNewest, model: TextModel) -> None:
        self._source = source
        self._model = model
        self._changed = threading.Condition()
        self._error: BrayError | None = None
        self._is_closing = False
        self._taken = self._take()
        self._thread = threading.Thread(target=self._follow, name="text-weights", daemon=True)
        self._thread.start()

    def wait(self, version: int, timeout_s: float) -> None:
        """Wait until the model has a version of the weights.

        Raises:
            DeadlineError: it did not arrive in time.
            BrayError: what following failed with.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._error is not None or self._model.version >= version, timeout_s
            )
            if self._error is not None:
                raise self._error
            if self._model.version < version:
                raise DeadlineError(
                    f"weights: version {version} did not arrive within {timeout_s:g} s, the newest "
                    f"is {self._model.version}"
                )

    def _take(self) -> int:
        """Give the model what has arrived, and return the number of its publish."""
        number, carried = self._source.weights()
        version, weights = as_published(carried)
        self._model.engine.publish(weights, version)
        return number

    def _follow(self) -> None:
        asyncio.run(self._follow_on())

    async def _follow_on(self) -> None:
        while not self._is_closing:
            try:
                await self._source.wait_version(self._taken + 1, _LOOK_S)
                self._taken = self._take()
            except DeadlineError:
                continue
            except BrayError as error:
                if not isinstance(error, ClosedError):
                    logger.warning("weights: no newer ones are taken: %s", error)
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            with self._changed:
                self._changed.notify_all()

    def close(self) -> None:
        """End the thread."""
        self._is_closing = True
        self._thread.join(2 * _LOOK_S)
