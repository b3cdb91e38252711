"""Weights on their way from the trained module to the models that serve them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from torch import nn

from bray_core import metrics
from bray_core.protocols import Model


class Publisher:
    """Publishes each module's weights to its model.

    Args:
        modules: name → module.
        models: name → model, of some of the modules.
        buffers: told of each new version, where they have `set_policy_version`.
    """

    def __init__(
        self, modules: Mapping[str, nn.Module], models: Mapping[str, Model], buffers: list[Any]
    ) -> None:
        self._modules = dict(modules)
        self._models = dict(models)
        self._buffers = buffers
        self.version = 0

    def offer(self) -> None:
        """Publish the weights as they are now; those of an earlier offer may be left out."""
        started = time.perf_counter()
        for name, model in self._models.items():
            state = self._modules[name].state_dict()
            version = model.publish({k: v.detach().cpu().numpy() for k, v in state.items()})
            if name == next(iter(self._models)):
                self.version = version
        metrics.record("trainer/publish_s", time.perf_counter() - started)
        metrics.record("trainer/policy_version", self.version, kind="last")

    def follow(self, version: int) -> None:
        """Take note of a version that rank 0 published."""
        if version <= self.version:
            return
        self.version = version
        for buffer in self._buffers:
            if hasattr(buffer, "set_policy_version"):
                buffer.set_policy_version(version)

    def flush(self) -> None:
        """Wait until what was offered is published, or raise what failed."""
